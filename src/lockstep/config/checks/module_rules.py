"""Rules for a custom module, which replaces what some keys configure."""

from lockstep.config.errors import Error, Errors, literal
from lockstep.config.schema.configuration import Config


def errors(config: Config) -> Errors:
    trainer = config.trainer
    settings = (
        ("compile", config.compile, False, "call torch.compile in it"),
        (
            "parameters",
            config.parameters or None,
            None,
            "make the groups in its configure_optimizers",
        ),
        (
            "trainer.accumulate_grad_batches",
            trainer.accumulate_grad_batches,
            1,
            "accumulate in its training_step",
        ),
        (
            "trainer.gradient_clip_norm",
            trainer.gradient_clip_norm,
            None,
            "clip in its configure_gradient_clipping",
        ),
        ("trainer.memory_format", trainer.memory_format, "auto", "choose the format in it"),
        ("trainer.graph", True if trainer.graph is True else None, None, "capture graphs in it"),
        # Lightning changes the loss scale between the steps of two optimizers, and lets fused SGD
        # begin with a skipped step.
        (
            "trainer.precision",
            "float16" if trainer.precision == "float16" else None,
            None,
            "use bfloat16 or float32",
        ),
    )
    problem = (
        f"is a setting of Lockstep's module, which module._target_={config.module.target} replaces"
    )
    for key, value, default, hint in settings:
        if value != default:
            yield Error("conflict", f"{key}={literal(value)}", problem, f"remove it, or {hint}")
