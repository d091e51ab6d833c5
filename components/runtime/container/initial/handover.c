// What libcontainer starts for a new container hands over to a spare process, if
// it was given the way to one: it waits until libcontainer has put it into the
// container's cgroups, sends all that it was started with to the spare, and
// ends. The spare tells libcontainer of itself. Whenever something is amiss the
// process fails, before anything of the container has happened: what was prepared
// for a spare is not for others.

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

// Earlier than libcontainer's own constructor, which has no priority.
__attribute__((constructor(200))) static void handover(void)
{
	static char way[] = "_LIBCONTAINER_PIDFD_SOCK";
	int sock = descriptor(way);
	if (sock < 0)
		return;
	// Go must not see it, for whom it would have another meaning. The name is
	// right before the value.
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
