"""Stand-ins for the images that docker-compose.yaml names, for a machine that can pull none."""
