"""Where the time and the bytes of each token went: records, meters, reports. Decides nothing."""
