// Loads the seccomp filter of a container when libcontainer's init code is ready for it.
//
// The init code reports to its parent that the container is set up (procReady) and waits for the answer (procRun).
// Then it drops privileges and executes the container's program. The filter must be loaded in between: before, the
// filter would forbid mounts; after, the process may not load it. So a thread forwards the messages between both.
// When procRun arrives, it loads the filter for all threads of the process and only then forwards the message.
//
// The thread does not run Go code. With one processor, as libcontainer configures it, Go would not schedule it while
// the init code blocks in a system call.

#include "seccomp.h"

#include <errno.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_FDS 8

static struct {
	int inner, outer; // the sockets to the init code and to the parent
	struct sock_fprog program;
	struct sock_filter instructions[BPF_MAXINSNS];
	char message[256 << 10]; // more than the kernel's default maximum of a message
} state;

// fail reports an error to the parent as the init code does, and ends the process.
static void fail(const char *what, int error)
{
	char text[512];
	int n = snprintf(text, sizeof(text), "{\"type\":\"procError\",\"flags\":0,\"arg\":{\"message\":\"loading seccomp filter: %s: %s\"}}",
			 what, strerror(error));
	if (n > 0 && n < (int)sizeof(text))
		(void)!send(state.outer, text, n, MSG_NOSIGNAL);
	_exit(1);
}

static void load(void)
{
	// The flags that libcontainer uses by default.
	unsigned int flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
	long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &state.program);
	if (result == -1 && errno == EINVAL) // kernels before 4.17
		result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &state.program);
	if (result == -1)
		fail("seccomp", errno);
	if (result != 0) // the ID of a thread with another filter
		fail("synchronizing threads", EBUSY);
}

static int is(const char *type, ssize_t size)
{
	size_t length = strlen(type);
	return (size_t)size >= length && memcmp(state.message, type, length) == 0;
}

// check inspects a message without file descriptors from the parent. Unknown messages end the process, because the
// init code could take one for procRun.
static void check(ssize_t size)
{
	if (is("{\"type\":\"procRun\"", size))
		load();
	else if (!is("{\"type\":\"procHooksDone\"", size) && !is("{\"type\":\"procMountFd\"", size))
		fail("unexpected message", EPROTO);
}

enum result { FORWARDED, CLOSED, EXECUTING };

// forward forwards one message. It returns CLOSED if the sender has closed its end, and EXECUTING if a socket of this
// thread is not open: the init code closes all file descriptors of the process before it executes the container's
// program, and does not wait until this thread has noticed the end of the init code's socket. The number may already
// refer to another file.
static enum result forward(int from, int to)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(MOST_FDS * sizeof(int))];
	} control;
	struct iovec data = { .iov_base = state.message, .iov_len = sizeof(state.message) };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space),
	};
	ssize_t size;
	do
		size = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
	while (size < 0 && errno == EINTR);
	if (size == 0 || (size < 0 && errno == ECONNRESET))
		return CLOSED;
	if (size < 0 && (errno == EBADF || errno == ENOTSOCK))
		return EXECUTING;
	if (size < 0)
		fail("receiving message", errno);
	if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		fail("receiving message", EMSGSIZE);
	struct cmsghdr *fds = CMSG_FIRSTHDR(&message);
	if (from == state.outer && fds == NULL)
		check(size);
	data.iov_len = size;
	ssize_t sent;
	do
		sent = sendmsg(to, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0 && (errno == EBADF || errno == ENOTSOCK))
		return EXECUTING;
	// If the receiver has closed its end, the sender notices it.
	if (sent < 0 && errno != EPIPE && errno != ECONNRESET)
		fail("forwarding message", errno);
	for (; fds != NULL; fds = CMSG_NXTHDR(&message, fds)) {
		if (fds->cmsg_level != SOL_SOCKET || fds->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (fds->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(fds) + i * sizeof(int), sizeof(int));
			close(fd);
		}
	}
	return FORWARDED;
}

static void *run(void *unused)
{
	enum { INNER, OUTER };
	struct pollfd wait[] = { { .fd = state.inner, .events = POLLIN }, { .fd = state.outer, .events = POLLIN } };
	for (;;) {
		if (poll(wait, 2, -1) < 0) {
			if (errno == EINTR)
				continue;
			fail("waiting for message", errno);
		}
		enum result outer = wait[OUTER].revents ? forward(state.outer, state.inner) : FORWARDED;
		enum result inner = wait[INNER].revents ? forward(state.inner, state.outer) : FORWARDED;
		if (outer == EXECUTING || inner == EXECUTING)
			return NULL;
		if (outer == CLOSED) {
			shutdown(state.inner, SHUT_WR);
			wait[OUTER].fd = -1;
		}
		if (inner == CLOSED)
			break;
	}
	// The init code has closed its end. It expects that the parent notices it.
	close(state.inner);
	close(state.outer);
	return NULL;
}

int load_filter_when_ready(int inner, int outer, const void *program, size_t size)
{
	size_t count = size / sizeof(struct sock_filter);
	if (size % sizeof(struct sock_filter) != 0 || count == 0 || count > BPF_MAXINSNS)
		return EINVAL;
	memcpy(state.instructions, program, size);
	state.program.len = count;
	state.program.filter = state.instructions;
	state.inner = inner;
	state.outer = outer;

	// Signals are for Go's threads.
	sigset_t all, before;
	sigfillset(&all);
	pthread_attr_t attributes;
	pthread_t thread;
	int error = pthread_attr_init(&attributes);
	if (error != 0)
		return error;
	error = pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (error == 0)
		error = pthread_attr_setstacksize(&attributes, 128 << 10);
	if (error == 0)
		error = pthread_sigmask(SIG_SETMASK, &all, &before);
	if (error == 0) {
		error = pthread_create(&thread, &attributes, run, NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_attr_destroy(&attributes);
	return error;
}
