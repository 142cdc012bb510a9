/*
 * Datagrams there and back, each with its number and a content that depends on it.
 *
 *   udp-echo serve at=ADDR:PORT [count=N]                     prints "listening" and returns what comes, for ever or N times
 *   udp-echo ask to=ADDR:PORT [size=N] [count=N] [segment=N]  one after the other, each answer awaited for a second
 *
 * It ends with
 *   asked sent=N received=N wrong=N ms=N
 * With segment a call carries up to 60 KiB of datagrams of that many bytes (UDP_SEGMENT), and size is that of the call.
 */
#include "common.h"

#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define DATAGRAM_MAX 65507
#define ANSWER_MS 1000

static int run_server(void)
{
	static uint8_t bytes[DATAGRAM_MAX];
	struct sockaddr_storage at, from;
	socklen_t length = address("at", &at);
	int fd = socket(at.ss_family, SOCK_DGRAM, 0);
	long count = number("count", -1);

	if (bind(fd, (struct sockaddr *)&at, length))
		fail("bind");
	printf("listening\n");
	for (long i = 0; i != count; i++) {
		ssize_t n;

		length = sizeof(from);
		n = recvfrom(fd, bytes, sizeof(bytes), 0, (struct sockaddr *)&from, &length);
		if (n < 0)
			fail("recvfrom");
		if (sendto(fd, bytes, (size_t)n, 0, (struct sockaddr *)&from, length) != n)
			fail("sendto");
	}
	return 0;
}

static void fill(uint8_t *bytes, uint32_t index, size_t size)
{
	uint32_t be = htonl(index);

	for (size_t k = 0; k < size; k++)
		bytes[k] = (uint8_t)(index * 31 + k * 7 + (k >> 8));
	memcpy(bytes, &be, size < 4 ? size : 4);
}

/* Takes the answers to one call, which may come in any order of its datagrams. */
static void take(int fd, const uint8_t *sent, size_t size, size_t segment, long *received, long *wrong)
{
	static uint8_t bytes[DATAGRAM_MAX];
	struct pollfd pollfd = { .fd = fd, .events = POLLIN };

	for (size_t at = 0; at < size; at += segment) {
		size_t expected = size - at < segment ? size - at : segment;
		ssize_t n;

		if (poll(&pollfd, 1, ANSWER_MS) <= 0)
			return;
		n = recv(fd, bytes, sizeof(bytes), 0);
		if (n < 0)
			fail("recv");
		++*received;
		if ((size_t)n != expected || memcmp(bytes, sent + at, expected) != 0)
			++*wrong;
	}
}

static int run_client(void)
{
	static uint8_t bytes[DATAGRAM_MAX];
	struct sockaddr_storage to;
	socklen_t length = address("to", &to);
	size_t size = (size_t)number("size", 64);
	long count = number("count", 1), received = 0, wrong = 0, datagrams;
	int segment = (int)number("segment", 0);
	int fd = socket(to.ss_family, SOCK_DGRAM, 0);
	int64_t begun;

	if (size > DATAGRAM_MAX)
		usage("size is too large");
	if (connect(fd, (struct sockaddr *)&to, length))
		fail("connect");
	if (segment && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)))
		fail("UDP_SEGMENT");
	datagrams = segment ? (long)((size + (size_t)segment - 1) / (size_t)segment) : 1;
	begun = now_us();
	for (long i = 0; i < count; i++) {
		fill(bytes, (uint32_t)i, size);
		if (send(fd, bytes, size, 0) != (ssize_t)size)
			fail("send");
		take(fd, bytes, size ? size : 1, segment ? (size_t)segment : size + 1, &received, &wrong);
	}
	printf("asked sent=%ld received=%ld wrong=%ld ms=%lld\n", count * datagrams, received, wrong,
	       (long long)(now_us() - begun) / 1000);
	return 0;
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	if (argc > 1 && strcmp(argv[1], "serve") == 0)
		return run_server();
	if (argc > 1 && strcmp(argv[1], "ask") == 0)
		return run_client();
	usage("serve or ask");
}
