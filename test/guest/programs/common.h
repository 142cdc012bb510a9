/*
 * What the guest's programs share: arguments written name=value after a mode, addresses, the pattern that streams carry,
 * and the end when a call fails. Each line they print is an event for the test, "failed ..." among them.
 */
#ifndef ZEROTX_GUEST_COMMON_H
#define ZEROTX_GUEST_COMMON_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A prime, so that a part of the stream that is moved, lost or repeated by a power of two does not fit its place. */
#define PATTERN_PERIOD 1048583u

static int argument_count;
static char **arguments;

__attribute__((unused)) static const char *text(const char *name)
{
	size_t length = strlen(name);

	for (int i = 2; i < argument_count; i++)
		if (strncmp(arguments[i], name, length) == 0 && arguments[i][length] == '=')
			return arguments[i] + length + 1;
	return NULL;
}

__attribute__((unused)) static long number(const char *name, long otherwise)
{
	const char *value = text(name);

	return value ? strtol(value, NULL, 0) : otherwise;
}

__attribute__((unused)) static void fail(const char *call)
{
	printf("failed %s: %s\n", call, strerror(errno));
	exit(1);
}

__attribute__((unused)) static void usage(const char *words)
{
	printf("failed arguments: %s\n", words);
	exit(2);
}

/* ADDRESS:PORT, where an IPv6 address may stand in brackets, with its zone, as [fe80::1%eth0]:5000; returns the length. */
__attribute__((unused)) static socklen_t address(const char *name, struct sockaddr_storage *out)
{
	struct sockaddr_in *in = (struct sockaddr_in *)out;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
	const char *value = text(name);
	const char *colon = value ? strrchr(value, ':') : NULL;
	char host[64] = "";
	char *zone;
	size_t length;

	if (!colon)
		usage("ADDRESS:PORT is missing");
	length = (size_t)(colon - value);
	if (length > 1 && value[0] == '[' && value[length - 1] == ']') {
		value++;
		length -= 2;
	}
	if (length >= sizeof(host))
		usage("ADDRESS:PORT is too long");
	memcpy(host, value, length);
	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, host, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)atoi(colon + 1));
		return sizeof(*in);
	}
	zone = strchr(host, '%');
	if (zone) {
		*zone = '\0';
		in6->sin6_scope_id = if_nametoindex(zone + 1);
	}
	if (inet_pton(AF_INET6, host, &in6->sin6_addr) != 1)
		usage("not ADDRESS:PORT");
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons((uint16_t)atoi(colon + 1));
	return sizeof(*in6);
}

/* The stream's content: position i holds byte i % PATTERN_PERIOD of this. `extra` bytes more, so that reads need not wrap. */
__attribute__((unused)) static void fill_pattern(uint8_t *bytes, size_t extra)
{
	uint32_t x = 1;

	for (size_t i = 0; i < PATTERN_PERIOD; i++) {
		x = x * 1664525u + 1013904223u;
		bytes[i] = (uint8_t)(x >> 24);
	}
	for (size_t i = 0; i < extra; i++)
		bytes[PATTERN_PERIOD + i] = bytes[i % PATTERN_PERIOD];
}

__attribute__((unused)) static int64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static inline void begin(int argc, char **argv)
{
	argument_count = argc;
	arguments = argv;
	setvbuf(stdout, NULL, _IOLBF, 0);
}

#endif
