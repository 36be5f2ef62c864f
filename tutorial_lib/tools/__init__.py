"""What a user calls: the command line, the doctor, the finale."""
