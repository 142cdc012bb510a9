/**
 * What to start a virtual machine with, so that its network card is one of our devices: to be copied into a terminal.
 *
 * The device never sees memory that is not shared, so that is the first part of it. QEMU keeps the MAC address and the MTU of
 * the card to itself: they stand here, and not in what the device offers.
 */
import { createHash } from 'node:crypto';
import { accessSync, constants, readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import type { Voice } from './voice.ts';

export interface Card {
  /** Of the port. */
  readonly name: string;
  /** Absolute path. */
  readonly socket: string;
  /** `listen`: we do, and QEMU connects. */
  readonly role: 'listen' | 'connect';
  readonly frontend: 'qemu' | 'uml';
  readonly queues: number;
  readonly mtu: number;
  readonly mac: string;
}

const MTU_DEFAULT = 1500;

/** Tells how to start the guests of these cards: lines to copy, or documents. */
export function showGuests(voice: Voice, cards: readonly Card[], json: boolean): void {
  const kvm = hasKvm();
  for (const card of cards) {
    const { name, socket, mac } = card;
    const command = guestCommand(card, kvm);
    if (json) voice.document({ event: 'guest', port: name, socket, mac, command: command.join('\n') });
    else voice.lines([`# ${name}`, ...command, '']);
  }
  if (!json) voice.lines(guestNotes(cards, kvm));
}

/** Whether this user may use KVM, as whoever copies the command is taken to. */
function hasKvm(): boolean {
  try {
    accessSync('/dev/kvm', constants.R_OK | constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

/** A command, a line for each part; without `kvm` for software emulation. */
export function guestCommand(card: Card, kvm: boolean): string[] {
  if (card.frontend === 'uml') {
    return [`linux mem=512M virtio_uml.device=${shellWord(card.socket)}:1`];
  }
  const id = idOf(card.name);
  return [
    // A driver takes as many queue pairs into use as it has processors.
    `qemu-system-x86_64 -accel ${kvm ? 'kvm' : 'tcg'} -m 1G${card.queues > 1 ? ` -smp ${card.queues}` : ''} \\`,
    '  -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\',
    `  -chardev ${shellWord(chardev(id, card))} \\`,
    `  -netdev vhost-user,id=${id}-net,chardev=${id}${card.queues > 1 ? `,queues=${card.queues}` : ''} \\`,
    `  -device ${device(id, card, kvm)}`,
  ];
}

/** What to know about these commands. */
export function guestNotes(cards: readonly Card[], kvm: boolean): string[] {
  const qemu = cards.filter(({ frontend }) => frontend === 'qemu');
  if (qemu.length === 0) return [];
  const connects = qemu.some(({ role }) => role === 'listen');
  return [
    '# Append your disk, such as -drive file=disk.qcow2,if=virtio -nographic. -m and size= are the same memory.',
    ...(connects ? ['# QEMU 9.2 and later call reconnect=1 reconnect-ms=1000.'] : []),
    ...(kvm
      ? []
      : [
          '# This user may not use /dev/kvm: so -accel tcg, which is slow, and vectors=0, or QEMU 7.2 crashes.',
        ]),
  ];
}

function chardev(id: string, { socket, role }: Card): string {
  // In options of QEMU a comma in a value is written twice.
  const path = socket.replaceAll(',', ',,');
  return `socket,id=${id},path=${path},${role === 'listen' ? 'reconnect=1' : 'server=on,wait=off'}`;
}

function device(id: string, { queues, mac, mtu }: Card, kvm: boolean): string {
  const parts = [`virtio-net-pci,netdev=${id}-net,mac=${mac}`];
  if (queues > 1) parts.push('mq=on');
  if (mtu !== MTU_DEFAULT) parts.push(`host_mtu=${mtu}`);
  if (!kvm) parts.push('vectors=0');
  parts.push('rx_queue_size=1024,tx_queue_size=1024');
  return parts.join(',');
}

/** An id as QEMU takes it: letters, digits, and - . _, beginning with a letter. */
function idOf(name: string): string {
  const id = name.replace(/[^A-Za-z0-9._-]/g, '-');
  return /^[A-Za-z]/.test(id) ? id : `n${id}`;
}

function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * An address for a card that was given none: the same each time, so that a command that was copied stays right, and another on
 * every host. 52:54:00 is what QEMU uses.
 */
export function stableMac(socket: string): string {
  const digest = createHash('sha256').update(`${machineId()}\0${hostname()}\0${socket}`).digest('hex');
  return `52:54:00:${digest.slice(0, 2)}:${digest.slice(2, 4)}:${digest.slice(4, 6)}`;
}

function machineId(): string {
  try {
    return readFileSync('/etc/machine-id', 'utf8').trim();
  } catch {
    return '';
  }
}
