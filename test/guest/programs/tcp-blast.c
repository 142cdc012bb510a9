/*
 * A stream of a known content over TCP, as fast as it goes, with every byte checked at the other end.
 *
 *   tcp-blast receive at=ADDR:PORT [count=N] [crc=0]
 *   tcp-blast send to=ADDR:PORT bytes=N [write=N] [zerocopy=1] [sndbuf=N] [crc=0]
 *
 * A receiver prints "listening", and for each of count connections
 *   received bytes=N ms=N wrong=OFFSET crc=HEX         the first byte that differs, or -1
 * A sender waits until the receiver has everything, and then for its completions, and prints
 *   sent bytes=N ms=N calls=N completions=N copied=N crc=HEX
 * where a call with MSG_ZEROCOPY is done when its number has come from the error queue, and `copied` counts those flagged
 * SO_EE_CODE_ZEROCOPY_COPIED. crc is that of zlib, over the whole stream; computing it takes time in a guest.
 */
#include "common.h"

#include <linux/errqueue.h>
#include <sys/mman.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

#define WRITE_MAX (16u << 20)
#define READ_BYTES (256u << 10)
/* The error queue is read when this many calls are outstanding; a socket's option memory holds more. */
#define OUTSTANDING 64u
#define COMPLETION_TIMEOUT_MS 10000

static uint32_t crc_table[256];

static void make_crc_table(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int k = 0; k < 8; k++)
			c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
		crc_table[i] = c;
	}
}

static uint32_t crc(uint32_t sum, const uint8_t *bytes, size_t length)
{
	sum = ~sum;
	for (size_t i = 0; i < length; i++)
		sum = crc_table[(sum ^ bytes[i]) & 0xff] ^ (sum >> 8);
	return ~sum;
}

static uint8_t *memory(size_t extra)
{
	size_t length = PATTERN_PERIOD + extra;
	uint8_t *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (bytes == MAP_FAILED)
		fail("mmap");
	fill_pattern(bytes, extra);
	return bytes;
}

static void receive_one(int fd, const uint8_t *expected)
{
	static uint8_t bytes[READ_BYTES];
	uint64_t total = 0;
	int64_t wrong = -1, begun = now_us();
	uint32_t sum = 0;
	int with_crc = number("crc", 1) != 0;

	for (;;) {
		ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
		const uint8_t *at = expected + total % PATTERN_PERIOD;

		if (n < 0)
			fail("recv");
		if (n == 0)
			break;
		if (wrong < 0 && memcmp(bytes, at, (size_t)n) != 0)
			for (ssize_t i = 0; wrong < 0; i++)
				if (bytes[i] != at[i])
					wrong = (int64_t)total + i;
		if (with_crc)
			sum = crc(sum, bytes, (size_t)n);
		total += (uint64_t)n;
	}
	printf("received bytes=%llu ms=%lld wrong=%lld crc=%08x\n", (unsigned long long)total,
	       (long long)(now_us() - begun) / 1000, (long long)wrong, sum);
}

static int run_receiver(void)
{
	struct sockaddr_storage at;
	socklen_t length = address("at", &at);
	const uint8_t *expected = memory(READ_BYTES);
	int one = 1, fd = socket(at.ss_family, SOCK_STREAM, 0);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&at, length))
		fail("bind");
	if (listen(fd, 16))
		fail("listen");
	printf("listening\n");
	for (long i = number("count", 1); i > 0; i--) {
		int connection = accept(fd, NULL, NULL);

		if (connection < 0)
			fail("accept");
		receive_one(connection, expected);
		close(connection);
	}
	return 0;
}

struct completions {
	uint32_t calls;
	uint32_t done;
	uint32_t copied;
};

static void reap(int fd, struct completions *completions)
{
	char control[128];

	for (;;) {
		struct msghdr msg = { .msg_control = control, .msg_controllen = sizeof(control) };
		struct sock_extended_err record;
		struct cmsghdr *c;

		if (recvmsg(fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
			if (errno == EAGAIN)
				return;
			fail("error queue");
		}
		c = CMSG_FIRSTHDR(&msg);
		if (!c)
			continue;
		memcpy(&record, CMSG_DATA(c), sizeof(record));
		if (record.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
			continue;
		completions->done += record.ee_data - record.ee_info + 1;
		if (record.ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
			completions->copied += record.ee_data - record.ee_info + 1;
	}
}

static void wait_for_some(int fd, struct completions *completions)
{
	struct pollfd pollfd = { .fd = fd };
	uint32_t before = completions->done;

	reap(fd, completions);
	if (completions->done != before)
		return;
	if (poll(&pollfd, 1, COMPLETION_TIMEOUT_MS) <= 0) {
		printf("failed completions: %u of %u\n", completions->done, completions->calls);
		exit(1);
	}
	reap(fd, completions);
}

static void send_all(int fd, const uint8_t *bytes, uint64_t total, int zerocopy, struct completions *completions)
{
	size_t write_bytes = (size_t)number("write", 65536);
	uint64_t at = 0;

	while (at < total) {
		size_t length = total - at < write_bytes ? (size_t)(total - at) : write_bytes;
		int flags = MSG_NOSIGNAL | (zerocopy ? MSG_ZEROCOPY : 0);
		ssize_t n = send(fd, bytes + at % PATTERN_PERIOD, length, flags);

		if (n < 0 && errno == ENOBUFS && zerocopy) {
			wait_for_some(fd, completions);
			continue;
		}
		if (n < 0)
			fail("send");
		at += (uint64_t)n;
		completions->calls++;
		while (zerocopy && completions->calls - completions->done >= OUTSTANDING)
			wait_for_some(fd, completions);
	}
}

static int run_sender(void)
{
	struct sockaddr_storage to;
	socklen_t length = address("to", &to);
	long write_bytes = number("write", 65536), sndbuf = number("sndbuf", 0);
	uint64_t total = (uint64_t)number("bytes", 1 << 20);
	int zerocopy = number("zerocopy", 0) != 0, one = 1;
	int buffer = (int)sndbuf;
	struct completions completions = { 0 };
	int fd = socket(to.ss_family, SOCK_STREAM, 0);
	uint8_t *bytes, end;
	uint32_t sum = 0;
	int64_t begun, ms;

	if (write_bytes < 1 || write_bytes > (long)WRITE_MAX)
		usage("write=1..16777216");
	bytes = memory((size_t)write_bytes);
	if (sndbuf && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)))
		fail("SO_SNDBUF");
	if (zerocopy && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)))
		fail("SO_ZEROCOPY");
	if (connect(fd, (struct sockaddr *)&to, length))
		fail("connect");
	begun = now_us();
	send_all(fd, bytes, total, zerocopy, &completions);
	shutdown(fd, SHUT_WR);
	if (recv(fd, &end, 1, 0) < 0)
		fail("recv");
	ms = (now_us() - begun) / 1000;
	while (zerocopy && completions.done != completions.calls)
		wait_for_some(fd, &completions);
	for (uint64_t at = 0; number("crc", 1) && at < total;) {
		size_t n = total - at < PATTERN_PERIOD ? (size_t)(total - at) : PATTERN_PERIOD;

		sum = crc(sum, bytes, n);
		at += n;
	}
	printf("sent bytes=%llu ms=%lld calls=%u completions=%u copied=%u crc=%08x\n", (unsigned long long)total,
	       (long long)ms, completions.calls, completions.done, completions.copied, sum);
	return 0;
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	make_crc_table();
	if (argc > 1 && strcmp(argv[1], "receive") == 0)
		return run_receiver();
	if (argc > 1 && strcmp(argv[1], "send") == 0)
		return run_sender();
	usage("receive or send");
}
