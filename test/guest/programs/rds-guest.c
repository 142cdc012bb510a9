/*
 * What the guest needs to talk RDS: one program for both ends of a test, over the guest kernel's own PF_RDS sockets.
 *
 *   rds-guest recv at=ADDR:PORT size=N count=N [rcvbuf=N] [hold=FIFO]      checks count messages, then waits for a bye
 *   rds-guest echo at=ADDR:PORT size=N count=N                            the same, and sends each one back
 *   rds-guest send at=ADDR:PORT to=ADDR:PORT size=N count=N [sndbuf=N] [nonblock=1] [zerocopy=1]   then waits for a bye
 *   rds-guest ping at=ADDR:PORT to=ADDR:0 count=N                         empty messages to port 0, one at a time
 *   rds-guest counters | connections                                      what RDS_INFO tells
 *
 * Message i carries its number (big-endian, 4 bytes) and a pattern that depends on number and position; messages.ts has the
 * other half. A receiver insists on the numbers 0, 1, 2 ... without a gap or a repetition, and on every byte. A bye is a
 * message numbered 0xffffffff. A sender stays until it comes, as closing an RDS socket withdraws what is not acknowledged; a
 * receiver, so that a late duplicate is noticed. Each line printed is an event for the test: "bound", "congested 12" ...
 * With hold the receiver reads nothing until somebody opens the FIFO for writing.
 *
 * The protocol as in linux/rds.h; see rds(7).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rds.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

#define BYE 0xffffffffu
#define MESSAGE_MAX (1024 * 1024)
/* Messages lent at the same time. */
#define WINDOW 16
/* A map update may come between ENOBUFS and poll(): look again by ourselves. */
#define CONGESTED_POLL_MS 200

static int argument_count;
static char **arguments;

static const char *text(const char *name)
{
	size_t length = strlen(name);

	for (int i = 2; i < argument_count; i++)
		if (strncmp(arguments[i], name, length) == 0 && arguments[i][length] == '=')
			return arguments[i] + length + 1;
	return NULL;
}

static int number(const char *name, int otherwise)
{
	const char *value = text(name);

	return value ? atoi(value) : otherwise;
}

static void fail(const char *call)
{
	printf("failed %s: %s\n", call, strerror(errno));
	exit(1);
}

static struct sockaddr_in address(const char *name)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	const char *value = text(name);
	const char *colon = value ? strchr(value, ':') : NULL;
	char ip[INET_ADDRSTRLEN] = "";

	if (!colon || colon - value >= (long)sizeof(ip)) {
		printf("failed arguments: %s=ADDRESS:PORT is missing\n", name);
		exit(2);
	}
	memcpy(ip, value, (size_t)(colon - value));
	if (inet_pton(AF_INET, ip, &in.sin_addr) != 1)
		fail("inet_pton");
	in.sin_port = htons((uint16_t)atoi(colon + 1));
	return in;
}

static void fill(uint8_t *bytes, uint32_t index, size_t size)
{
	uint32_t be = htonl(index);

	for (size_t k = 0; k < size; k++)
		bytes[k] = (uint8_t)(index * 31 + k * 7 + (k >> 8));
	if (size >= 4)
		memcpy(bytes, &be, 4);
}

static uint32_t index_of(const uint8_t *bytes)
{
	uint32_t be;

	memcpy(&be, bytes, 4);
	return ntohl(be);
}

static int open_socket(void)
{
	struct sockaddr_in at = address("at");
	int sndbuf = number("sndbuf", 0);
	int rcvbuf = number("rcvbuf", 0);
	int one = 1;
	int fd = socket(PF_RDS, SOCK_SEQPACKET, 0);

	if (fd < 0)
		fail("socket");
	if (sndbuf && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf)))
		fail("SO_SNDBUF");
	if (rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)))
		fail("SO_RCVBUF");
	if (number("zerocopy", 0) && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)))
		fail("SO_ZEROCOPY");
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)))
		fail("bind");
	printf("bound\n");
	return fd;
}

static void wait_for(int fd, short events, int timeout_ms)
{
	struct pollfd pollfd = { .fd = fd, .events = events };

	if (poll(&pollfd, 1, timeout_ms) < 0)
		fail("poll");
}

/* Only to find out: a wrong message ends the program, as whatever comes after it says nothing. */
static void check(const uint8_t *got, size_t length, uint32_t index, size_t size)
{
	static uint8_t expected[MESSAGE_MAX];

	if (length != size || (size >= 4 && index_of(got) != index)) {
		printf("failed check: message %u of %zu bytes, expected %u of %zu\n",
		       length >= 4 ? index_of(got) : 0, length, index, size);
		exit(1);
	}
	fill(expected, index, size);
	for (size_t k = 0; k < size; k++) {
		if (got[k] == expected[k])
			continue;
		printf("failed check: message %u differs at byte %zu\n", index, k);
		exit(1);
	}
}

static size_t receive(int fd, uint8_t *bytes, struct sockaddr_in *from)
{
	socklen_t from_length = sizeof(*from);
	ssize_t n = recvfrom(fd, bytes, MESSAGE_MAX, 0, (struct sockaddr *)from, &from_length);

	if (n < 0)
		fail("recvmsg");
	return (size_t)n;
}

/* Any other message here is one too many. */
static void check_bye(const uint8_t *bytes, size_t n)
{
	if (n < 4 || index_of(bytes) != BYE) {
		printf("failed bye: message %u of %zu bytes\n", n >= 4 ? index_of(bytes) : 0, n);
		exit(1);
	}
	printf("bye\n");
}

static void wait_for_bye(int fd)
{
	static uint8_t bytes[MESSAGE_MAX];
	struct sockaddr_in from;
	size_t n = receive(fd, bytes, &from);

	check_bye(bytes, n);
}

static int run_receiver(int echo)
{
	static uint8_t bytes[MESSAGE_MAX];
	size_t size = (size_t)number("size", 64);
	uint32_t count = (uint32_t)number("count", 1);
	const char *hold = text("hold");
	struct sockaddr_in from;
	int fd = open_socket();

	if (hold)
		close(open(hold, O_RDONLY));
	for (uint32_t i = 0; i < count; i++) {
		size_t n = receive(fd, bytes, &from);

		check(bytes, n, i, size);
		if (echo && sendto(fd, bytes, n, 0, (struct sockaddr *)&from, sizeof(from)) != (ssize_t)n)
			fail("sendmsg");
	}
	printf("received %u\n", count);
	wait_for_bye(fd);
	return 0;
}

/* The bye came with a completion, or before one. */
static int bye_seen;

/* Takes the cookies of one record, and a bye; returns how many cookies. */
static int reap(int fd, uint8_t *done)
{
	uint8_t bytes[4];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	char control[CMSG_SPACE(sizeof(struct rds_zcopy_cookies))];
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	struct rds_zcopy_cookies cookies;
	ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n < 0)
		fail("recvmsg (completion)");
	if (n > 0) {
		check_bye(bytes, (size_t)n);
		bye_seen = 1;
	}
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_RDS || c->cmsg_type != RDS_CMSG_ZCOPY_COMPLETION)
			continue;
		memcpy(&cookies, CMSG_DATA(c), sizeof(cookies));
		for (uint32_t i = 0; i < cookies.num; i++)
			done[cookies.cookies[i]]++;
		return (int)cookies.num;
	}
	return 0;
}

static int send_one(int fd, struct sockaddr_in *to, uint8_t *bytes, size_t size, uint32_t index, int zerocopy)
{
	char control[CMSG_SPACE(sizeof(uint32_t))] = { 0 };
	struct iovec iov = { .iov_base = bytes, .iov_len = size };
	struct msghdr msg = { .msg_name = to, .msg_namelen = sizeof(*to), .msg_iov = &iov, .msg_iovlen = 1 };
	int flags = number("nonblock", 0) || zerocopy ? MSG_DONTWAIT : 0;

	if (zerocopy) {
		struct cmsghdr *c;

		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_RDS;
		c->cmsg_type = RDS_CMSG_ZCOPY_COOKIE;
		c->cmsg_len = CMSG_LEN(sizeof(index));
		memcpy(CMSG_DATA(c), &index, sizeof(index));
		flags |= MSG_ZEROCOPY;
	}
	if (sendmsg(fd, &msg, flags) == (ssize_t)size)
		return 0;
	if (errno != EAGAIN && errno != ENOBUFS)
		fail("sendmsg");
	return errno;
}

static int run_sender(void)
{
	size_t size = (size_t)number("size", 64);
	uint32_t count = (uint32_t)number("count", 1);
	int zerocopy = number("zerocopy", 0);
	int congested = 0;
	struct sockaddr_in to = address("to");
	int fd = open_socket();
	uint8_t *window = mmap(NULL, WINDOW * MESSAGE_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *done = calloc(count + 1, 1);

	if (window == MAP_FAILED || !done)
		fail("mmap");
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *bytes = window + (size_t)(i % WINDOW) * MESSAGE_MAX;
		int error;

		/* The buffer may be written again only when its last message has completed. */
		while (zerocopy && i >= WINDOW && !done[i - WINDOW])
			if (reap(fd, done) == 0)
				wait_for(fd, POLLIN, -1);
		fill(bytes, i, size);
		while ((error = send_one(fd, &to, bytes, size, i, zerocopy)) != 0) {
			if (error == ENOBUFS && !congested++)
				printf("congested %u\n", i);
			if (!zerocopy || reap(fd, done) == 0)
				wait_for(fd, error == EAGAIN ? POLLOUT : POLLIN, CONGESTED_POLL_MS);
		}
	}
	printf("sent %u\n", count);
	for (uint32_t i = 0; zerocopy && i < count; i++)
		while (!done[i])
			if (reap(fd, done) == 0)
				wait_for(fd, POLLIN, -1);
	for (uint32_t i = 0; zerocopy && i < count; i++)
		if (done[i] != 1) {
			printf("failed completions: cookie %u came %d times\n", i, done[i]);
			return 1;
		}
	if (zerocopy)
		printf("completed %u\n", count);
	if (!bye_seen)
		wait_for_bye(fd);
	return 0;
}

static int run_ping(void)
{
	static uint8_t bytes[MESSAGE_MAX];
	int count = number("count", 1);
	struct sockaddr_in to = address("to");
	struct sockaddr_in from;
	int fd = open_socket();

	for (int i = 0; i < count; i++) {
		struct timespec before, after;

		clock_gettime(CLOCK_MONOTONIC, &before);
		if (sendto(fd, NULL, 0, 0, (struct sockaddr *)&to, sizeof(to)) != 0)
			fail("sendmsg");
		if (receive(fd, bytes, &from) != 0 || from.sin_port != 0 || from.sin_addr.s_addr != to.sin_addr.s_addr) {
			printf("failed pong: not an empty message from port 0 of the peer\n");
			return 1;
		}
		clock_gettime(CLOCK_MONOTONIC, &after);
		printf("pong %d %ld us\n", i, (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000);
	}
	return 0;
}

/* The records of one RDS_INFO option; the call returns the size of one, and the length of all in `length`. */
static void *info(int option, socklen_t *length)
{
	void *records = malloc(1 << 20);
	int fd = socket(PF_RDS, SOCK_SEQPACKET, 0);

	*length = 1 << 20;
	if (!records || fd < 0 || getsockopt(fd, SOL_RDS, option, records, length) < 0)
		fail("RDS_INFO");
	close(fd);
	return records;
}

static int print_counters(void)
{
	socklen_t length;
	struct rds_info_counter *counter = info(RDS_INFO_COUNTERS, &length);

	for (; length >= sizeof(*counter); length -= sizeof(*counter), counter++)
		printf("%.32s %llu\n", (char *)counter->name, (unsigned long long)counter->value);
	return 0;
}

static int print_connections(void)
{
	socklen_t length;
	struct rds_info_connection *c = info(RDS_INFO_CONNECTIONS, &length);

	for (; length >= sizeof(*c); length -= sizeof(*c), c++) {
		char local[INET_ADDRSTRLEN], foreign[INET_ADDRSTRLEN];

		inet_ntop(AF_INET, &c->laddr, local, sizeof(local));
		inet_ntop(AF_INET, &c->faddr, foreign, sizeof(foreign));
		printf("%s %s tx %llu rx %llu flags %d\n", local, foreign, (unsigned long long)c->next_tx_seq,
		       (unsigned long long)c->next_rx_seq, c->flags);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	argument_count = argc;
	arguments = argv;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (strcmp(mode, "recv") == 0 || strcmp(mode, "echo") == 0)
		return run_receiver(mode[0] == 'e');
	if (strcmp(mode, "send") == 0)
		return run_sender();
	if (strcmp(mode, "ping") == 0)
		return run_ping();
	if (strcmp(mode, "counters") == 0)
		return print_counters();
	if (strcmp(mode, "connections") == 0)
		return print_connections();
	printf("failed arguments: recv, echo, send, ping, counters or connections\n");
	return 2;
}
