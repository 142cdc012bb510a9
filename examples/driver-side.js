/**
 * A very small host on a network of virtual machines: it plugs into a vhost-user back-end as a network card would, answers
 * ARP and ping at its address, and pings others. The back-end may be zerotx's own switch, or any other.
 *
 *   node examples/driver-side.js                                  two hosts and a cable between them
 *   node examples/driver-side.js <socket> <address>               answers until Ctrl-C
 *   node examples/driver-side.js <socket> <address> <target>      pings the target a thousand times
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Link, systemClock } from 'zerotx/switch';
import { VhostUserDevice, VhostUserFrontend } from 'zerotx/vhost';

const ARP = 0x0806;
const IPV4 = 0x0800;
const ICMP = 1;
const EVERYBODY = Buffer.alloc(6, 0xff);
const PINGS = 1000;

/** The internet checksum: the inverted sum of all 16-bit words, with the carry added in again. */
function checksum(bytes) {
  let sum = 0;
  for (let i = 0; i + 1 < bytes.length; i += 2) sum += bytes.readUInt16BE(i);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}

function ethernet(to, from, type, payload) {
  const header = Buffer.concat([to, from, Buffer.of(type >> 8, type & 0xff)]);
  return Buffer.concat([header, payload]);
}

function arp(operation, mac, ip, targetMac, targetIp) {
  const fixed = Buffer.of(0, 1, 8, 0, 6, 4, 0, operation);
  return Buffer.concat([fixed, mac, ip, targetMac, targetIp]);
}

function ping(type, from, to, sequence) {
  const icmp = Buffer.alloc(64);
  icmp[0] = type;
  icmp.writeUInt16BE(sequence, 6);
  icmp.writeUInt16BE(checksum(icmp), 2);
  const ip = Buffer.concat([Buffer.of(0x45, 0, 0, 84, 0, 0, 0, 0, 64, ICMP, 0, 0), from, to]);
  ip.writeUInt16BE(checksum(ip), 10);
  return Buffer.concat([ip, icmp]);
}

/** An address, a network card, and those who wait for an answer. */
class Host {
  constructor(nic, address) {
    this.nic = nic;
    this.ip = Buffer.from(address.split('.').map(Number));
    this.mac = Buffer.from(nic.mac);
    this.answered = 0;
    this.waiting = new Map();
    nic.on('frame', (frame) => this.receive(frame));
  }

  receive(frame) {
    const type = frame.length < 14 ? 0 : frame.readUInt16BE(12);
    if (type === ARP && frame.length >= 42) this.receiveArp(frame);
    else if (type === IPV4 && frame.length >= 42 && frame[23] === ICMP) this.receivePing(frame);
  }

  receiveArp(frame) {
    const [operation, mac, ip, target] = [
      frame[21],
      frame.subarray(22, 28),
      frame.subarray(28, 32),
      frame.subarray(38, 42),
    ];
    if (!target.equals(this.ip)) return;
    if (operation === 1) this.nic.send(ethernet(mac, this.mac, ARP, arp(2, this.mac, this.ip, mac, ip)));
    else this.resolve('arp', Buffer.from(mac));
  }

  receivePing(frame) {
    const [type, from, to] = [frame[34], frame.subarray(26, 30), frame.subarray(30, 34)];
    if (!to.equals(this.ip)) return;
    const sequence = frame.readUInt16BE(40);
    if (type === 0) this.resolve(sequence, null);
    if (type !== 8) return;
    // What was asked goes back, with addresses and type changed.
    const reply = Buffer.from(frame);
    reply.set([...frame.subarray(6, 12), ...this.mac]);
    reply.set([...to, ...from], 26);
    reply[34] = 0;
    reply.writeUInt16BE(0, 36);
    reply.writeUInt16BE(checksum(reply.subarray(34)), 36);
    this.nic.send(reply);
    this.answered += 1;
  }

  resolve(what, value) {
    this.waiting.get(what)?.(value);
    this.waiting.delete(what);
  }

  /** Sends a frame and waits for its answer, a second at most. */
  async ask(what, frame) {
    let timer;
    const answer = new Promise((resolve, reject) => {
      this.waiting.set(what, resolve);
      timer = setTimeout(() => reject(new Error('no answer')), 1000);
    });
    try {
      await this.nic.sendFrame(frame);
      return await answer;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Round trips in microseconds, shortest first. */
  async ping(target, count) {
    const ip = Buffer.from(target.split('.').map(Number));
    const question = arp(1, this.mac, this.ip, Buffer.alloc(6), ip);
    const mac = await this.ask('arp', ethernet(EVERYBODY, this.mac, ARP, question));
    const times = [];
    for (let sequence = 0; sequence < count; sequence++) {
      const start = performance.now();
      await this.ask(sequence, ethernet(mac, this.mac, IPV4, ping(8, this.ip, ip, sequence)));
      times.push((performance.now() - start) * 1000);
    }
    return times.sort((a, b) => a - b);
  }
}

function report(target, times) {
  const [median, slow] = [0.5, 0.99].map((part) => times[Math.floor(times.length * part)].toFixed(0));
  console.log(`${times.length} pings of ${target} answered: median ${median} us, 99 % below ${slow} us`);
}

async function demonstrate() {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-'));
  const devices = ['a', 'b'].map((name) => new VhostUserDevice({ path: join(folder, name), name }));
  const cable = new Link(...devices, { clock: systemClock });
  for (const device of devices) await device.open();
  const nics = await Promise.all(devices.map(({ path }) => VhostUserFrontend.connect({ path })));
  const [here, there] = nics.map((nic, i) => new Host(nic, `192.0.2.${i + 1}`));
  report('192.0.2.2', await here.ping('192.0.2.2', PINGS));
  const { tx, rx } = nics[0];
  console.log(
    `${tx.counters.completed} frames out, ${rx.counters.frames} in; the other side answered ${there.answered}`,
  );
  for (const nic of nics) await nic.close();
  cable.close();
  for (const device of devices) await device.close();
  rmSync(folder, { recursive: true });
}

const [path, address, target] = process.argv.slice(2);
if (path === undefined) await demonstrate();
else if (/^[\d.]+$/.test(address)) {
  const nic = await VhostUserFrontend.connect({ path, reconnect: target === undefined });
  const host = new Host(nic, address);
  if (target === undefined) {
    console.log(`answering at ${address}, ${host.mac.toString('hex')}`);
    process.once('SIGINT', () => nic.close().then(() => console.log(`${host.answered} pings answered`)));
  } else {
    report(target, await host.ping(target, PINGS));
    await nic.close();
  }
} else {
  console.error('usage: node driver-side.js [socket address [target]]');
  process.exitCode = 2;
}
