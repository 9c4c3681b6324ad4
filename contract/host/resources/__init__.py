"""What steps on the host share: threads, memory, views of arrays, BLAS's threads."""
