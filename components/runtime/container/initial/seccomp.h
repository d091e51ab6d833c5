#include <stddef.h>

// load_filter_when_ready starts a thread that forwards messages between the sockets inner (to libcontainer's init
// code) and outer (to the parent), and loads the seccomp filter before the container's program can run. It copies the
// program, an array of struct sock_filter. It returns an error number or 0.
int load_filter_when_ready(int inner, int outer, const void *program, size_t size);
