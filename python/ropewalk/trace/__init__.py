"""Load of hosts over time, beside what runs on them (`ropewalk trace`)."""
