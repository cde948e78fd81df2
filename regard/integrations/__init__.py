"""What belongs to one other library, a file each; importing one needs that library."""
