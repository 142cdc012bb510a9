/*
 * What the guest needs to talk RDS: one program for both ends of a test, over the guest kernel's own PF_RDS sockets.
 *
 *   rds-guest recv at=ADDR:PORT size=N[,N...] count=N [rcvbuf=N] [hold=FIFO] [from=any]   checks messages, then waits for a bye
 *   rds-guest epochs at=ADDR:PORT size=N[,N...]       the same for senders that begin anew, until a bye comes
 *   rds-guest echo at=ADDR:PORT size=N[,N...] count=N     as recv, and sends each one back
 *   rds-guest send at=ADDR:PORT to=ADDR:PORT size=N[,N...] count=N [sndbuf=N] [nonblock=1] [zerocopy=1]   then waits for a bye
 *   rds-guest ping at=ADDR:PORT to=ADDR:0 count=N         empty messages to port 0, one at a time
 *   rds-guest info WHAT       counters, connections, sockets, send, retrans, recv or tcp; with a 6 at the end the records for IPv6
 *
 * An address is IPv4, or IPv6 in brackets. Message i has the i-th of the sizes, which are repeated; it carries its number
 * (big-endian, 4 bytes, if it has room) and a pattern that depends on number and position; messages.ts has the other half.
 * A receiver insists on the numbers 0, 1, 2 ... without a gap or a repetition, and on every byte; with from=any the first
 * one tells where they begin. Of an epoch's messages the upper half of the number is the epoch. A bye is a message numbered
 * 0xffffffff. A sender stays until it comes, as closing an RDS socket withdraws what is not acknowledged; a receiver, so
 * that a late duplicate is noticed. Each line printed is an event for the test: "bound", "congested 12" ... With hold the
 * receiver reads nothing until somebody opens the FIFO for writing.
 *
 * The protocol as in linux/rds.h; see rds(7).
 */
#include "common.h"
#include <fcntl.h>
#include <linux/rds.h>
#include <sys/mman.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

#define BYE 0xffffffffu
#define MESSAGE_MAX (1024 * 1024)
#define SIZES_MAX 32
/* Messages lent at the same time. */
#define WINDOW 16
/* A map update may come between ENOBUFS and poll(): look again by ourselves. */
#define CONGESTED_POLL_MS 200
/* Longer than any pause of a peer that is well; whoever started us may end us before. */
#define SILENCE_MS 60000

struct peer {
	struct sockaddr_storage address;
	socklen_t length;
};

static size_t sizes[SIZES_MAX];
static uint32_t size_count;

static void read_sizes(void)
{
	const char *value = text("size");
	char *end = (char *)(value ? value : "64");

	while (*end && size_count < SIZES_MAX) {
		sizes[size_count++] = strtoul(end, &end, 0);
		if (sizes[size_count - 1] > MESSAGE_MAX)
			usage("size is over 1 MiB");
		if (*end == ',')
			end++;
	}
}

static size_t size_of(uint32_t index)
{
	return sizes[index % size_count];
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

static int is_bye(const uint8_t *bytes, size_t length)
{
	return length == 4 && index_of(bytes) == BYE;
}

static int open_socket(void)
{
	struct peer at;
	int sndbuf = (int)number("sndbuf", 0);
	int rcvbuf = (int)number("rcvbuf", 0);
	int one = 1;
	int fd = socket(PF_RDS, SOCK_SEQPACKET, 0);

	at.length = address("at", &at.address);
	if (fd < 0)
		fail("socket");
	if (sndbuf && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf)))
		fail("SO_SNDBUF");
	if (rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf)))
		fail("SO_RCVBUF");
	if (number("zerocopy", 0) && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)))
		fail("SO_ZEROCOPY");
	if (bind(fd, (struct sockaddr *)&at.address, at.length))
		fail("bind");
	printf("bound\n");
	return fd;
}

/* Returns whether there is something: without a limit of the caller's own, nothing at all is an error. */
static int wait_for(int fd, short events, int timeout_ms)
{
	struct pollfd pollfd = { .fd = fd, .events = events };
	int ready = poll(&pollfd, 1, timeout_ms < 0 ? SILENCE_MS : timeout_ms);

	if (ready < 0)
		fail("poll");
	if (ready == 0 && timeout_ms < 0) {
		printf("failed poll: nothing within %d ms\n", SILENCE_MS);
		exit(1);
	}
	return ready;
}

/* Only to find out: a wrong message ends the program, as whatever comes after it says nothing. */
static void check(const uint8_t *got, size_t length, uint32_t index)
{
	static uint8_t expected[MESSAGE_MAX];
	size_t size = size_of(index);

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

/* Woken by a map of some peer there may be no message yet: look again. */
static size_t receive(int fd, uint8_t *bytes, struct peer *from)
{
	for (;;) {
		ssize_t n;

		wait_for(fd, POLLIN, -1);
		from->length = sizeof(from->address);
		n = recvfrom(fd, bytes, MESSAGE_MAX, MSG_DONTWAIT, (struct sockaddr *)&from->address, &from->length);
		if (n >= 0)
			return (size_t)n;
		if (errno != EAGAIN)
			fail("recvmsg");
	}
}

/* Any other message here is one too many. */
static void check_bye(const uint8_t *bytes, size_t n)
{
	if (!is_bye(bytes, n)) {
		printf("failed bye: message %u of %zu bytes\n", n >= 4 ? index_of(bytes) : 0, n);
		exit(1);
	}
	printf("bye\n");
}

static void wait_for_bye(int fd)
{
	static uint8_t bytes[MESSAGE_MAX];
	struct peer from;
	size_t n = receive(fd, bytes, &from);

	check_bye(bytes, n);
}

static int run_receiver(int echo)
{
	static uint8_t bytes[MESSAGE_MAX];
	uint32_t count = (uint32_t)number("count", 1);
	const char *hold = text("hold");
	const char *anywhere = text("from");
	uint32_t first = 0;
	struct peer from;
	int fd = open_socket();

	if (hold)
		close(open(hold, O_RDONLY));
	for (uint32_t i = 0; i < count; i++) {
		size_t n = receive(fd, bytes, &from);

		if (anywhere && i == 0 && n >= 4) {
			i = first = index_of(bytes);
			printf("first %u\n", first);
		}
		check(bytes, n, i);
		if (echo && sendto(fd, bytes, n, 0, (struct sockaddr *)&from.address, from.length) != (ssize_t)n)
			fail("sendmsg");
	}
	printf("received %u\n", count - first);
	wait_for_bye(fd);
	return 0;
}

/* Each process of the peer has an epoch of its own, and may end in the middle of it. */
static int run_epochs(void)
{
	static uint8_t bytes[MESSAGE_MAX];
	uint32_t next = 0;
	struct peer from;
	int fd = open_socket();

	for (;;) {
		size_t n = receive(fd, bytes, &from);

		if (is_bye(bytes, n)) {
			printf("epoch %u received %u\nbye\n", next >> 16, next & 0xffff);
			return 0;
		}
		if (n >= 4 && index_of(bytes) >> 16 > next >> 16) {
			printf("epoch %u received %u\n", next >> 16, next & 0xffff);
			next = index_of(bytes) & 0xffff0000;
		}
		check(bytes, n, next++);
	}
}

/* The bye came with a completion, or before one. */
static int bye_seen;
static uint32_t records;

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
		records++;
		return (int)cookies.num;
	}
	return 0;
}

static int send_one(int fd, struct peer *to, uint8_t *bytes, size_t size, uint32_t index, int zerocopy)
{
	char control[CMSG_SPACE(sizeof(uint32_t))] = { 0 };
	struct iovec iov = { .iov_base = bytes, .iov_len = size };
	struct msghdr msg = {
		.msg_name = &to->address, .msg_namelen = to->length, .msg_iov = &iov, .msg_iovlen = 1
	};
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

/* Until message `index` is accepted, and its buffer of the window was free before. */
static void send_message(int fd, struct peer *to, uint8_t *window, uint8_t *done, uint32_t index, int *congested)
{
	uint8_t *bytes = window + (size_t)(index % WINDOW) * MESSAGE_MAX;
	size_t size = size_of(index);
	/* Nothing cannot be lent: a cookie without payload is EINVAL. */
	int zerocopy = number("zerocopy", 0) && size > 0;
	int error;

	while (number("zerocopy", 0) && index >= WINDOW && !done[index - WINDOW])
		if (reap(fd, done) == 0)
			wait_for(fd, POLLIN, -1);
	fill(bytes, index, size);
	while ((error = send_one(fd, to, bytes, size, index, zerocopy)) != 0) {
		if (error == ENOBUFS && !(*congested)++)
			printf("congested %u\n", index);
		if (!number("zerocopy", 0) || reap(fd, done) == 0)
			wait_for(fd, error == EAGAIN ? POLLOUT : POLLIN, CONGESTED_POLL_MS);
	}
	if (!zerocopy)
		done[index] = 1;
}

static int run_sender(void)
{
	uint32_t count = (uint32_t)number("count", 1);
	int zerocopy = (int)number("zerocopy", 0);
	int congested = 0;
	struct peer to;
	int fd = open_socket();
	uint8_t *window = mmap(NULL, WINDOW * MESSAGE_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *done = calloc(count + 1, 1);

	to.length = address("to", &to.address);
	if (window == MAP_FAILED || !done)
		fail("mmap");
	for (uint32_t i = 0; i < count; i++)
		send_message(fd, &to, window, done, i, &congested);
	printf("sent %u\n", count);
	for (uint32_t i = 0; i < count; i++) {
		while (!done[i])
			if (reap(fd, done) == 0)
				wait_for(fd, POLLIN, -1);
		if (done[i] == 1)
			continue;
		printf("failed completions: cookie %u came %d times\n", i, done[i]);
		return 1;
	}
	if (zerocopy)
		printf("completed %u in %u records\n", count, records);
	if (!bye_seen)
		wait_for_bye(fd);
	return 0;
}

static int same_host(const struct peer *a, const struct peer *b)
{
	const struct sockaddr_in *a4 = (const void *)&a->address, *b4 = (const void *)&b->address;
	const struct sockaddr_in6 *a6 = (const void *)&a->address, *b6 = (const void *)&b->address;

	if (a->address.ss_family != b->address.ss_family)
		return 0;
	if (a->address.ss_family == AF_INET)
		return a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
}

/* Both kinds of address have it in the same place. */
static uint16_t port_of(const struct peer *peer)
{
	return ntohs(((const struct sockaddr_in *)&peer->address)->sin_port);
}

static int run_ping(void)
{
	static uint8_t bytes[MESSAGE_MAX];
	int64_t least = INT64_MAX, most = 0, sum = 0;
	int count = (int)number("count", 1);
	struct peer to, from;
	int fd = open_socket();

	to.length = address("to", &to.address);
	for (int i = 0; i < count; i++) {
		int64_t before = now_us(), took;

		if (sendto(fd, NULL, 0, 0, (struct sockaddr *)&to.address, to.length) != 0)
			fail("sendmsg");
		if (receive(fd, bytes, &from) != 0 || port_of(&from) != 0 || !same_host(&from, &to)) {
			printf("failed pong: not an empty message from port 0 of the peer\n");
			return 1;
		}
		took = now_us() - before;
		printf("pong %d %lld us\n", i, (long long)took);
		least = took < least ? took : least;
		most = took > most ? took : most;
		sum += took;
	}
	printf("pings=%d min_us=%lld mean_us=%lld max_us=%lld\n", count, (long long)least, (long long)(sum / count),
	       (long long)most);
	return 0;
}

/* A record's address: 4 bytes of IPv4, or 16, in which an IPv4 address is mapped. */
static const char *host(const void *bytes, int six)
{
	static char texts[2][INET6_ADDRSTRLEN];
	static int turn;
	char *out = texts[turn ^= 1];

	inet_ntop(six ? AF_INET6 : AF_INET, bytes, out, INET6_ADDRSTRLEN);
	return out;
}

static void print_connection(const void *record, int six)
{
	const struct rds_info_connection *c = record;
	const struct rds6_info_connection *c6 = record;

	if (six)
		printf("laddr=%s faddr=%s next_tx=%llu next_rx=%llu flags=%d\n", host(&c6->laddr, 1), host(&c6->faddr, 1),
		       (unsigned long long)c6->next_tx_seq, (unsigned long long)c6->next_rx_seq, c6->flags);
	else
		printf("laddr=%s faddr=%s next_tx=%llu next_rx=%llu flags=%d\n", host(&c->laddr, 0), host(&c->faddr, 0),
		       (unsigned long long)c->next_tx_seq, (unsigned long long)c->next_rx_seq, c->flags);
}

static void print_message(const void *record, int six)
{
	const struct rds_info_message *m = record;
	const struct rds6_info_message *m6 = record;

	if (six)
		printf("seq=%llu len=%u laddr=%s lport=%u faddr=%s fport=%u\n", (unsigned long long)m6->seq, m6->len,
		       host(&m6->laddr, 1), ntohs(m6->lport), host(&m6->faddr, 1), ntohs(m6->fport));
	else
		printf("seq=%llu len=%u laddr=%s lport=%u faddr=%s fport=%u\n", (unsigned long long)m->seq, m->len,
		       host(&m->laddr, 0), ntohs(m->lport), host(&m->faddr, 0), ntohs(m->fport));
}

static void print_socket(const void *record, int six)
{
	const struct rds_info_socket *s = record;
	const struct rds6_info_socket *s6 = record;

	if (six)
		printf("addr=%s port=%u sndbuf=%u rcvbuf=%u\n", host(&s6->bound_addr, 1), ntohs(s6->bound_port), s6->sndbuf,
		       s6->rcvbuf);
	else
		printf("addr=%s port=%u sndbuf=%u rcvbuf=%u\n", host(&s->bound_addr, 0), ntohs(s->bound_port), s->sndbuf,
		       s->rcvbuf);
}

static void print_tcp(const void *record, int six)
{
	const struct rds_info_tcp_socket *t = record;
	const struct rds6_info_tcp_socket *t6 = record;

	if (six)
		printf("laddr=%s lport=%u faddr=%s fport=%u sent=%u expected=%u seen=%u\n", host(&t6->local_addr, 1),
		       ntohs(t6->local_port), host(&t6->peer_addr, 1), ntohs(t6->peer_port), t6->last_sent_nxt,
		       t6->last_expected_una, t6->last_seen_una);
	else
		printf("laddr=%s lport=%u faddr=%s fport=%u sent=%u expected=%u seen=%u\n", host(&t->local_addr, 0),
		       ntohs(t->local_port), host(&t->peer_addr, 0), ntohs(t->peer_port), t->last_sent_nxt,
		       t->last_expected_una, t->last_seen_una);
}

static void print_counter(const void *record, int six)
{
	const struct rds_info_counter *c = record;

	(void)six;
	printf("%.32s %llu\n", (const char *)c->name, (unsigned long long)c->value);
}

static const struct {
	const char *name;
	int option;
	int six;
	void (*print)(const void *record, int six);
} kinds[] = {
	{ "counters", RDS_INFO_COUNTERS, 0, print_counter },
	{ "connections", RDS_INFO_CONNECTIONS, 0, print_connection },
	{ "connections6", RDS6_INFO_CONNECTIONS, 1, print_connection },
	{ "sockets", RDS_INFO_SOCKETS, 0, print_socket },
	{ "sockets6", RDS6_INFO_SOCKETS, 1, print_socket },
	{ "send", RDS_INFO_SEND_MESSAGES, 0, print_message },
	{ "send6", RDS6_INFO_SEND_MESSAGES, 1, print_message },
	{ "retrans", RDS_INFO_RETRANS_MESSAGES, 0, print_message },
	{ "retrans6", RDS6_INFO_RETRANS_MESSAGES, 1, print_message },
	{ "recv", RDS_INFO_RECV_MESSAGES, 0, print_message },
	{ "recv6", RDS6_INFO_RECV_MESSAGES, 1, print_message },
	{ "tcp", RDS_INFO_TCP_SOCKETS, 0, print_tcp },
	{ "tcp6", RDS6_INFO_TCP_SOCKETS, 1, print_tcp },
};

/* The call returns the size of one record, and the length of all in `length`. */
static int run_info(const char *what)
{
	socklen_t length = 1 << 20;
	uint8_t *records_of_kind = malloc(length);
	int fd = socket(PF_RDS, SOCK_SEQPACKET, 0);

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		int size;

		if (strcmp(what, kinds[i].name) != 0)
			continue;
		size = getsockopt(fd, SOL_RDS, kinds[i].option, records_of_kind, &length);
		if (fd < 0 || !records_of_kind || size <= 0)
			fail("RDS_INFO");
		for (socklen_t at = 0; at + (socklen_t)size <= length; at += (socklen_t)size)
			kinds[i].print(records_of_kind + at, kinds[i].six);
		return 0;
	}
	usage("info of what?");
	return 2;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	begin(argc, argv);
	read_sizes();
	if (strcmp(mode, "recv") == 0 || strcmp(mode, "echo") == 0)
		return run_receiver(mode[0] == 'e');
	if (strcmp(mode, "epochs") == 0)
		return run_epochs();
	if (strcmp(mode, "send") == 0)
		return run_sender();
	if (strcmp(mode, "ping") == 0)
		return run_ping();
	if (strcmp(mode, "info") == 0)
		return run_info(argc > 2 ? argv[2] : "");
	usage("recv, epochs, echo, send, ping or info");
	return 2;
}
