"""Images, network and task of this project. Their settings are in conf/."""
