/*
 * wire-peer: stands in for the remote host of one TCP connection, so that a zero-copy send stays a zero-copy send.
 *
 * The kernel copies MSG_ZEROCOPY pages when a packet reaches a protocol handler or a packet tap on receive; tc ingress
 * runs before that moment. So the handshake is done by a real listener, which also reads the sender's first bytes and
 * sends the greeting; from then on a small eBPF program on the ingress of our veth end notes how far the sender's
 * sequence numbers have come, in a memory-mapped array, and drops the packet. This process reads that array about every
 * 20 us and answers with a cumulative ACK frame through a packet socket. The packet socket has protocol 0 and so receives nothing: it is not a tap.
 *
 * Nothing is asked of the sender, and nothing of its socket is touched (reading its TCP_INFO would take the socket lock
 * and so cost the process being measured). Only data that reached the wire is acknowledged. Data is thrown away: right
 * for the cost of sending and for completions, useless for checking content.
 *
 * usage: wire-peer IFNAME OWN_MAC SENDER_MAC ADDRESS PORT EXPECT_BYTES GREETING_BYTES
 * stdin: the greeting, then lines; each line asks for the statistics; end of file ends the process.
 * stdout: JSON lines with "event": "listening", "armed", "stats", "error".
 *
 * Needs CAP_NET_ADMIN, CAP_BPF and Linux 6.6 (BPF links on tcx ingress, which go away with this process).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Headers older than Linux 6.6 lack these. */
enum { TCX_INGRESS = 46, TCX_VERDICT_PASS = 0, TCX_VERDICT_DROP = 2 };

enum {
  ACK_PERIOD_NS = 20 * 1000,
  IDLE_PERIOD_NS = 200 * 1000,
  ACTIVE_ROUNDS = 1000,     /* about 50 ms without a packet before the longer period */
  COMMAND_ROUNDS = 100,     /* how often stdin is looked at while acknowledging */
  GREETING_TIMEOUT_MS = 10 * 1000,
  RECEIVE_BUFFER_BYTES = 4 << 20, /* decides the window scale of the handshake, nothing else */
};

/*
 * What the ingress program notes, the array's only value. The sender's packets arrive on the CPU that sent them, which
 * is the sender's own or, when an ACK set them free, ours: two programs may run at once, so all updates are atomic.
 */
struct progress {
  uint64_t packets;
  uint64_t payload_bytes; /* all that arrived, again or not; a FIN counts as one */
  uint64_t wanting;       /* packets that want an ACK */
  uint32_t started;       /* `end` is valid */
  uint32_t end;           /* sequence number after the last byte that arrived */
  uint32_t finished;      /* the sender's FIN came */
  uint32_t unused;
};

static void fail(const char *what) {
  printf("{\"event\":\"error\",\"call\":\"%s\",\"errno\":%d,\"message\":\"%s\"}\n", what, errno, strerror(errno));
  fflush(stdout);
  exit(1);
}

static int bpf(int command, void *attr, unsigned size) { return (int)syscall(SYS_bpf, command, attr, size); }

static int create_map(void) {
  union bpf_attr attr = {0};
  attr.map_type = BPF_MAP_TYPE_ARRAY;
  attr.key_size = sizeof(uint32_t);
  attr.value_size = sizeof(struct progress);
  attr.max_entries = 1;
  attr.map_flags = BPF_F_MMAPABLE;
  int fd = bpf(BPF_MAP_CREATE, &attr, sizeof attr);
  if (fd < 0) fail("bpf map");
  return fd;
}

#define INSN(c, d, s, o, i) ((struct bpf_insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)})
#define LDX(size, d, s, o) INSN(BPF_LDX | BPF_MEM | (size), d, s, o, 0)
#define STX(size, d, s, o) INSN(BPF_STX | BPF_MEM | (size), d, s, o, 0)
#define MOV(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define MOVI(d, i) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define ALU32(op, d, s) INSN(BPF_ALU | (op) | BPF_X, d, s, 0, 0)
#define ALU32I(op, d, i) INSN(BPF_ALU | (op) | BPF_K, d, 0, 0, i)
#define TO_HOST32(d) INSN(BPF_ALU | BPF_END | BPF_TO_BE, d, 0, 0, 32)
#define JMP32I(op, d, i, o) INSN(BPF_JMP32 | (op) | BPF_K, d, 0, o, i)
#define JMP(op, d, s, o) INSN(BPF_JMP | (op) | BPF_X, d, s, o, 0)
#define ATOMIC_ADD64(d, s, o) INSN(BPF_STX | BPF_ATOMIC | BPF_DW, d, s, o, BPF_ADD)
/* r0 is what `end` was seen to be: if r9 is later, compare and exchange; r0 is then what it was. Four instructions. */
#define LATER_END                                                                                         \
  MOV(4, 9), ALU32(BPF_SUB, 4, 0), JMP32I(BPF_JSLE, 4, 0, 1),                                              \
      INSN(BPF_STX | BPF_ATOMIC | BPF_W, 1, 9, offsetof(struct progress, end), BPF_CMPXCHG)
#define EXIT INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)

/* The checks at the top of the program; they jump to its last two instructions. */
enum { CHECKS = 16 };

/*
 * Packets of our one connection (Ethernet, IPv4 without options, TCP, the two ports) are noted and dropped; anything
 * else passes. Lengths come from skb->len, because an IPv4 total length does not fit a packet beyond 64 KiB.
 *
 * r1 progress, r5 one, r6 sequence number, r7 payload + FIN, r8 FIN, r9 sequence number after this packet.
 */
static int load_program(int map, uint16_t sender_port, uint16_t port) {
  enum { TO_PASS = 0 }; /* filled in below */
  struct bpf_insn program[] = {
      LDX(BPF_W, 2, 1, offsetof(struct __sk_buff, data)),
      LDX(BPF_W, 3, 1, offsetof(struct __sk_buff, data_end)),
      LDX(BPF_W, 7, 1, offsetof(struct __sk_buff, len)),
      MOV(4, 2),
      INSN(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, 54),
      JMP(BPF_JGT, 4, 3, TO_PASS),
      LDX(BPF_H, 5, 2, 12), /* EtherType */
      JMP32I(BPF_JNE, 5, htons(ETHERTYPE_IP), TO_PASS),
      LDX(BPF_B, 5, 2, 14), /* version and header length */
      JMP32I(BPF_JNE, 5, 0x45, TO_PASS),
      LDX(BPF_B, 5, 2, 23), /* protocol */
      JMP32I(BPF_JNE, 5, IPPROTO_TCP, TO_PASS),
      LDX(BPF_H, 5, 2, 34), /* source port */
      JMP32I(BPF_JNE, 5, htons(sender_port), TO_PASS),
      LDX(BPF_H, 5, 2, 36), /* destination port */
      JMP32I(BPF_JNE, 5, htons(port), TO_PASS),

      LDX(BPF_B, 5, 2, 46), /* data offset, in its upper half: words */
      ALU32I(BPF_RSH, 5, 4),
      ALU32I(BPF_LSH, 5, 2),
      ALU32(BPF_SUB, 7, 5),
      ALU32I(BPF_SUB, 7, 34), /* r7 = payload */
      LDX(BPF_B, 8, 2, 47),   /* flags */
      ALU32I(BPF_AND, 8, 1),
      ALU32(BPF_ADD, 7, 8), /* a FIN takes a sequence number */
      LDX(BPF_W, 6, 2, 38),
      TO_HOST32(6), /* r6 = seq */
      MOV(9, 6),
      ALU32(BPF_ADD, 9, 7), /* r9 = end */

      INSN(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_VALUE, 0, map),
      INSN(0, 0, 0, 0, 0),
      MOVI(5, 1),
      JMP32I(BPF_JEQ, 8, 0, 1),
      STX(BPF_W, 1, 5, offsetof(struct progress, finished)),
      ATOMIC_ADD64(1, 5, offsetof(struct progress, packets)),
      ATOMIC_ADD64(1, 7, offsetof(struct progress, payload_bytes)),
      /* the first packet is alone: the sender has nothing else to send before it hears of us */
      LDX(BPF_W, 4, 1, offsetof(struct progress, started)),
      JMP32I(BPF_JNE, 4, 0, 2),
      STX(BPF_W, 1, 6, offsetof(struct progress, end)),
      STX(BPF_W, 1, 5, offsetof(struct progress, started)),
      LDX(BPF_W, 0, 1, offsetof(struct progress, end)),
      /* payload, FIN or an old sequence number (a keep-alive probe) wants an ACK; a bare ACK does not */
      MOV(4, 6),
      ALU32(BPF_SUB, 4, 0),
      JMP32I(BPF_JNE, 7, 0, 1),
      JMP32I(BPF_JSGE, 4, 0, 17),
      /* end = the later of end and r9, before the ACK is asked for; four attempts are enough for two CPUs */
      LATER_END,
      LATER_END,
      LATER_END,
      LATER_END,
      ATOMIC_ADD64(1, 5, offsetof(struct progress, wanting)),
      MOVI(0, TCX_VERDICT_DROP),
      EXIT,
      MOVI(0, TCX_VERDICT_PASS),
      EXIT,
  };
  const int count = (int)(sizeof program / sizeof program[0]);
  for (int i = 0; i < CHECKS; i++) {
    const int class = BPF_CLASS(program[i].code);
    if (class == BPF_JMP || class == BPF_JMP32) program[i].off = (short)(count - 2 - i - 1);
  }
  static char log[65536];
  union bpf_attr attr = {0};
  attr.prog_type = BPF_PROG_TYPE_SCHED_CLS;
  attr.insns = (uintptr_t)program;
  attr.insn_cnt = (unsigned)count;
  attr.license = (uintptr_t) "Dual BSD/GPL";
  attr.log_buf = (uintptr_t)log;
  attr.log_size = sizeof log;
  attr.log_level = 1;
  int fd = bpf(BPF_PROG_LOAD, &attr, sizeof attr);
  if (fd < 0) {
    fprintf(stderr, "%s\n", log);
    fail("bpf program");
  }
  return fd;
}

/* Returns the link; it goes away with its descriptor, so at the latest with this process. */
static int attach(int program, int ifindex) {
  union bpf_attr attr = {0};
  attr.link_create.prog_fd = (unsigned)program;
  attr.link_create.target_ifindex = (unsigned)ifindex;
  attr.link_create.attach_type = TCX_INGRESS;
  int fd = bpf(BPF_LINK_CREATE, &attr, sizeof attr);
  if (fd < 0) fail("bpf link on tcx ingress (needs Linux 6.6)");
  return fd;
}

static uint32_t sum16(const void *bytes, size_t length, uint32_t sum) {
  const uint8_t *p = bytes;
  for (size_t i = 0; i + 1 < length; i += 2) sum += (uint32_t)(p[i] << 8 | p[i + 1]);
  return sum;
}

static uint16_t fold(uint32_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return htons((uint16_t)~sum);
}

struct ack_frame {
  struct ether_header eth;
  struct iphdr ip;
  struct tcphdr tcp;
} __attribute__((packed));

struct peer {
  int packet_socket;
  struct sockaddr_ll link;
  struct ack_frame frame;
  const volatile struct progress *progress;
  uint32_t sequence; /* our own, after the greeting */
  uint64_t acks;
};

static void parse_mac(const char *text, uint8_t *mac) {
  unsigned b[6];
  if (sscanf(text, "%x:%x:%x:%x:%x:%x", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5]) != 6) {
    errno = EINVAL;
    fail("mac");
  }
  for (int i = 0; i < 6; i++) mac[i] = (uint8_t)b[i];
}

/* Acknowledges all that arrived; the sender's FIN is answered with ours, so that its end is not kept waiting. */
static void send_ack(struct peer *peer) {
  struct ack_frame *frame = &peer->frame;
  frame->tcp.fin = peer->progress->finished != 0;
  frame->tcp.seq = htonl(peer->sequence);
  frame->tcp.ack_seq = htonl(peer->progress->end);
  frame->tcp.check = 0;
  uint32_t sum = sum16(&frame->ip.saddr, 8, IPPROTO_TCP + sizeof frame->tcp);
  frame->tcp.check = fold(sum16(&frame->tcp, sizeof frame->tcp, sum));
  if (sendto(peer->packet_socket, frame, sizeof *frame, 0, (struct sockaddr *)&peer->link, sizeof peer->link) < 0)
    fail("send ack");
  peer->acks++;
}

static void report(const struct peer *peer) {
  const volatile struct progress *progress = peer->progress;
  struct timespec cpu;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  printf("{\"event\":\"stats\",\"packets\":%lu,\"payloadBytes\":%lu,\"acks\":%lu,\"cpuUs\":%ld}\n",
         progress->packets, progress->payload_bytes, peer->acks, cpu.tv_sec * 1000000L + cpu.tv_nsec / 1000);
  fflush(stdout);
}

/* Each line on stdin asks for the statistics; end of file ends the process. */
static void serve_commands(const struct peer *peer) {
  char text[256];
  struct pollfd in = {.fd = 0, .events = POLLIN};
  while (poll(&in, 1, 0) > 0) {
    ssize_t n = read(0, text, sizeof text);
    if (n <= 0) exit(0);
    for (ssize_t i = 0; i < n; i++)
      if (text[i] == '\n') report(peer);
  }
}

static void acknowledge_for_ever(struct peer *peer) {
  uint64_t seen = 0;
  unsigned quiet = 0, rounds = 0;
  for (;;) {
    const uint64_t wanting = peer->progress->wanting;
    if (wanting != seen) {
      seen = wanting;
      quiet = 0;
      send_ack(peer);
    } else if (quiet < ACTIVE_ROUNDS) {
      quiet++;
    }
    if (quiet == ACTIVE_ROUNDS || ++rounds % COMMAND_ROUNDS == 0) serve_commands(peer);
    const struct timespec pause = {0, quiet < ACTIVE_ROUNDS ? ACK_PERIOD_NS : IDLE_PERIOD_NS};
    nanosleep(&pause, NULL);
  }
}

/* Waits until `fd` is readable; the end of stdin or the deadline ends the process. */
static void wait_readable(int fd, int timeout_ms, const char *what) {
  struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = 0, .events = 0}};
  const int n = poll(fds, 2, timeout_ms);
  if (n < 0) fail(what);
  if (n == 0) {
    errno = ETIMEDOUT;
    fail(what);
  }
  if (fds[1].revents & (POLLHUP | POLLERR)) exit(0);
}

static void read_first_bytes(int fd, size_t expect_bytes) {
  static char sink[65536];
  while (expect_bytes > 0) {
    wait_readable(fd, GREETING_TIMEOUT_MS, "first bytes of the sender");
    ssize_t n = read(fd, sink, expect_bytes < sizeof sink ? expect_bytes : sizeof sink);
    if (n <= 0) fail("first bytes of the sender");
    expect_bytes -= (size_t)n;
  }
}

/*
 * Sends the greeting and makes our TCP forget the connection, silently (TCP_REPAIR): it hears no acknowledgement any
 * more and would send the greeting again and again. Returns the sequence number after the greeting.
 */
static uint32_t greet_and_forget(int fd, const char *greeting, size_t bytes) {
  const int on = 1, queue = TCP_SEND_QUEUE;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (write(fd, greeting, bytes) != (ssize_t)bytes) fail("greeting");
  if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) < 0) fail("TCP_REPAIR");
  if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof queue) < 0) fail("TCP_REPAIR_QUEUE");
  uint32_t sequence = 0;
  socklen_t length = sizeof sequence;
  if (getsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &sequence, &length) < 0) fail("TCP_QUEUE_SEQ");
  close(fd);
  return sequence;
}

static int accept_one(const char *address, uint16_t port, struct sockaddr_in *sender) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1, buffer = RECEIVE_BUFFER_BYTES;
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port)};
  if (inet_pton(AF_INET, address, &own.sin_addr) != 1) fail("address");
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  if (bind(listener, (struct sockaddr *)&own, sizeof own) < 0) fail("bind");
  if (listen(listener, 1) < 0) fail("listen");
  printf("{\"event\":\"listening\"}\n");
  fflush(stdout);
  wait_readable(listener, -1, "accept");
  socklen_t length = sizeof *sender;
  int fd = accept(listener, (struct sockaddr *)sender, &length);
  if (fd < 0) fail("accept");
  close(listener);
  return fd;
}

static void prepare_frame(struct peer *peer, const char *own_mac, const char *sender_mac, const char *address,
                          uint16_t port, const struct sockaddr_in *sender) {
  struct ack_frame *frame = &peer->frame;
  parse_mac(own_mac, frame->eth.ether_shost);
  parse_mac(sender_mac, frame->eth.ether_dhost);
  frame->eth.ether_type = htons(ETHERTYPE_IP);
  frame->ip.version = 4;
  frame->ip.ihl = 5;
  frame->ip.tot_len = htons(sizeof frame->ip + sizeof frame->tcp);
  frame->ip.frag_off = htons(0x4000);
  frame->ip.ttl = 64;
  frame->ip.protocol = IPPROTO_TCP;
  inet_pton(AF_INET, address, &frame->ip.saddr);
  frame->ip.daddr = sender->sin_addr.s_addr;
  frame->ip.check = fold(sum16(&frame->ip, sizeof frame->ip, 0));
  frame->tcp.source = htons(port);
  frame->tcp.dest = sender->sin_port;
  frame->tcp.doff = 5;
  frame->tcp.ack = 1;
  frame->tcp.window = htons(65535); /* scaled as the real socket said in its handshake */
}

/*
 * The last CPU we may use, so that the sender can have the others; and before anybody else there, because an ACK that is
 * milliseconds late makes the sender transmit again.
 */
static void take_cpu(void) {
  setpriority(PRIO_PROCESS, 0, -20);
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) < 0) return;
  int last = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &set)) last = cpu;
  CPU_ZERO(&set);
  CPU_SET(last, &set);
  sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char **argv) {
  if (argc != 8) {
    fprintf(stderr, "usage: wire-peer IFNAME OWN_MAC SENDER_MAC ADDRESS PORT EXPECT_BYTES GREETING_BYTES\n");
    return 2;
  }
  const uint16_t port = (uint16_t)atoi(argv[5]);
  const size_t greeting_bytes = strtoul(argv[7], NULL, 10);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_TIMERSLACK, 1UL);
  take_cpu();
  char *greeting = malloc(greeting_bytes + 1);
  for (size_t done = 0; done < greeting_bytes;) {
    ssize_t n = read(0, greeting + done, greeting_bytes - done);
    if (n <= 0) fail("greeting on stdin");
    done += (size_t)n;
  }

  struct peer peer = {0};
  const int map = create_map();
  peer.progress = mmap(NULL, sizeof(struct progress), PROT_READ, MAP_SHARED, map, 0);
  if (peer.progress == MAP_FAILED) fail("mmap");
  peer.packet_socket = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (peer.packet_socket < 0) fail("packet socket");
  peer.link.sll_family = AF_PACKET;
  peer.link.sll_ifindex = (int)if_nametoindex(argv[1]);
  peer.link.sll_halen = ETH_ALEN;
  /* Before anybody connects: can it be done here? */
  close(attach(load_program(map, 0, port), peer.link.sll_ifindex));

  struct sockaddr_in sender;
  const int fd = accept_one(argv[4], port, &sender);
  read_first_bytes(fd, strtoul(argv[6], NULL, 10));
  prepare_frame(&peer, argv[2], argv[3], argv[4], port, &sender);
  memcpy(peer.link.sll_addr, peer.frame.eth.ether_dhost, ETH_ALEN);
  /* In this order: what the sender says to the greeting must not reach a real TCP, which would have it copied. */
  attach(load_program(map, ntohs(sender.sin_port), port), peer.link.sll_ifindex);
  peer.sequence = greet_and_forget(fd, greeting, greeting_bytes);
  printf("{\"event\":\"armed\",\"senderPort\":%u}\n", ntohs(sender.sin_port));
  fflush(stdout);
  acknowledge_for_ever(&peer);
}
