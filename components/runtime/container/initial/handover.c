// If the runtime has offered a pre-started process, the process that libcontainer starts for a new
// container hands over to it: it waits until libcontainer has moved it to the container's cgroups,
// sends the file descriptors that it has inherited to the pre-started process, and exits. The
// pre-started process then reports its process ID to libcontainer. On any error this process exits
// with 1 before anything of the container has run, because a container that was prepared for a
// pre-started process cannot be started otherwise.

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static int descriptor(const char *name)
{
	char *value = getenv(name), *end = NULL;
	if (value == NULL || *value == '\0')
		return -1;
	long n = strtol(value, &end, 10);
	return *end == '\0' && n >= 0 && n < 1 << 20 ? (int)n : -1;
}

#define MOST 8

// Runs before libcontainer's constructor, which has no priority.
__attribute__((constructor(200))) static void handover(void)
{
	static char way[] = "_LIBCONTAINER_PIDFD_SOCK";
	int sock = descriptor(way);
	struct stat info;
	if (sock < 0)
		return;
	if (fstat(sock, &info) != 0)
		_exit(1);
	if (!S_ISSOCK(info.st_mode))
		return; // the seccomp filter of a process that does not hand over, see seccomp.go
	// Rename the variable, because libcontainer's Go code uses it for another purpose. The name
	// directly precedes the value.
	char *value = getenv(way);
	value[-2] = 'k';
	const char *type = getenv("_LIBCONTAINER_INITTYPE");
	if (type == NULL || strcmp(type, "standard") != 0)
		_exit(1);

	char roles[MOST] = { '0', '1', '2' };
	int fds[MOST] = { 0, 1, 2 }, count = 3;
	static const struct {
		const char *name;
		char role;
		int optional;
	} named[] = {
		{ "_LIBCONTAINER_INITPIPE", 'i', 0 }, { "_LIBCONTAINER_SYNCPIPE", 's', 0 }, { "_LIBCONTAINER_LOGPIPE", 'l', 0 },
		{ "_LIBCONTAINER_FIFOFD", 'f', 0 },   { "_LIBCONTAINER_CONSOLE", 'c', 1 },
	};
	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
		int fd = descriptor(named[i].name);
		if (fd < 0 && !named[i].optional)
			_exit(1);
		if (fd >= 0) {
			fds[count] = fd;
			roles[count++] = named[i].role;
		}
	}
	struct pollfd wait = { .fd = fds[3], .events = POLLIN };
	if (poll(&wait, 1, -1) != 1 || !(wait.revents & POLLIN))
		_exit(1);

	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(MOST * sizeof(int))];
	} control;
	memset(&control, 0, sizeof(control));
	struct iovec text = { .iov_base = roles, .iov_len = count };
	struct msghdr message = {
		.msg_iov = &text, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(count * sizeof(int)),
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	if (sendmsg(sock, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != count)
		_exit(1);
	_exit(0);
}
