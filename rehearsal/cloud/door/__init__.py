"""HTTP and gRPC servers, request checks, faults and the request log."""
