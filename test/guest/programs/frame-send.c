/*
 * Frames as they are, past the guest's protocols (AF_PACKET).
 *
 *   frame-send send dev=IFACE frame=HEX [pad=N] [count=N] [numbered=1] [vnet=HEX]
 *   frame-send listen dev=IFACE [type=0x88b5] [count=N]
 *
 * A sender lengthens the frame to pad bytes of a pattern; with numbered, bytes 14 to 17 hold its number (big-endian). vnet
 * is a virtio_net_hdr of 10 bytes that goes before the frame (PACKET_VNET_HDR). It ends with
 *   sent N refused=N errno=N        how many send() took, how many it refused, and the last reason
 * A listener prints "listening" and for each frame it gets, but not for those that this host sends,
 *   frame bytes=N vlan=TCI HEX      at most the first 256 bytes; vlan=-1: untagged
 */
#include "common.h"

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>

#define FRAME_MAX 70000
#define VNET_BYTES 10
#define SHOWN_BYTES 256

static size_t hex(const char *digits, uint8_t *out, size_t room)
{
	size_t n = 0;

	for (; digits && digits[0] && digits[1] && n < room; digits += 2) {
		char pair[3] = { digits[0], digits[1], 0 };

		out[n++] = (uint8_t)strtoul(pair, NULL, 16);
	}
	return n;
}

static int open_device(uint16_t type, struct sockaddr_ll *at)
{
	const char *name = text("dev");
	int fd = socket(AF_PACKET, SOCK_RAW, 0);

	if (!name)
		usage("dev=IFACE is missing");
	if (fd < 0)
		fail("socket");
	*at = (struct sockaddr_ll){ .sll_family = AF_PACKET, .sll_protocol = htons(type) };
	at->sll_ifindex = (int)if_nametoindex(name);
	if (at->sll_ifindex == 0)
		fail("dev");
	if (bind(fd, (struct sockaddr *)at, sizeof(*at)))
		fail("bind");
	return fd;
}

static int run_sender(void)
{
	static uint8_t bytes[VNET_BYTES + FRAME_MAX];
	struct sockaddr_ll at;
	int fd = open_device(0, &at), one = 1, reason = 0;
	size_t header = text("vnet") ? VNET_BYTES : 0;
	size_t length = hex(text("frame"), bytes + header, FRAME_MAX), pad = (size_t)number("pad", 0);
	long count = number("count", 1), sent = 0;

	if (length < 14)
		usage("frame=HEX of at least 14 bytes");
	if (header && hex(text("vnet"), bytes, header) != header)
		usage("vnet=HEX of 10 bytes");
	if (header && setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)))
		fail("PACKET_VNET_HDR");
	if (pad > FRAME_MAX)
		usage("pad is too large");
	for (; length < pad; length++)
		bytes[header + length] = (uint8_t)(length * 7 + (length >> 8));
	for (long i = 0; i < count; i++) {
		if (number("numbered", 0)) {
			uint32_t be = htonl((uint32_t)i);

			memcpy(bytes + header + 14, &be, 4);
		}
		if (sendto(fd, bytes, header + length, 0, (struct sockaddr *)&at, sizeof(at)) >= 0)
			sent++;
		else
			reason = errno;
	}
	printf("sent %ld refused=%ld errno=%d\n", sent, count - sent, reason);
	return 0;
}

static int vlan_of(struct msghdr *msg)
{
	struct tpacket_auxdata aux;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA)
			continue;
		memcpy(&aux, CMSG_DATA(c), sizeof(aux));
		return aux.tp_status & TP_STATUS_VLAN_VALID ? aux.tp_vlan_tci : -1;
	}
	return -1;
}

static int run_listener(void)
{
	static uint8_t bytes[FRAME_MAX];
	char control[128];
	struct sockaddr_ll at, from;
	int fd = open_device((uint16_t)number("type", ETH_P_ALL), &at), one = 1;
	long count = number("count", -1);

	if (setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &one, sizeof(one)))
		fail("PACKET_AUXDATA");
	printf("listening\n");
	while (count != 0) {
		struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
		struct msghdr msg = { .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &iov, .msg_iovlen = 1,
			.msg_control = control, .msg_controllen = sizeof(control) };
		ssize_t n = recvmsg(fd, &msg, 0);

		if (n < 0)
			fail("recvmsg");
		if (from.sll_pkttype == PACKET_OUTGOING)
			continue;
		printf("frame bytes=%zd vlan=%d ", n, vlan_of(&msg));
		for (ssize_t i = 0; i < n && i < SHOWN_BYTES; i++)
			printf("%02x", bytes[i]);
		printf("\n");
		count -= count > 0;
	}
	return 0;
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	if (argc > 1 && strcmp(argv[1], "send") == 0)
		return run_sender();
	if (argc > 1 && strcmp(argv[1], "listen") == 0)
		return run_listener();
	usage("send or listen");
}
