"""Where images come from: data sets that are downloaded or embedded, and folders of one's own."""
