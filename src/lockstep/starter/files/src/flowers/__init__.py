"""What is this project's own: its images, its network and its task. Their settings are in conf/."""
