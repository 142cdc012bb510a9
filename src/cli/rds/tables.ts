/**
 * The tables of rds-info, in the layout of rds-tools: titles, columns and widths are those that scripts know. A column grows where something in it is
 * longer, such as an IPv6 address, or the sequence numbers of this package, which begin with the time.
 */
import type { InfoLists } from '../../rds/index.ts';
import { printable } from '../printable.ts';

interface Column<T> {
  readonly title: string;
  /** At the least. */
  readonly width: number;
  cell(record: T): string;
}

const ADDRESS_WIDTH = 15;

function address<T>(title: string, cell: (record: T) => string): Column<T> {
  return { title, width: ADDRESS_WIDTH, cell };
}

function column<T>(title: string, width: number, cell: (record: T) => number | bigint | string): Column<T> {
  return { title, width, cell: (record) => String(cell(record)) };
}

type Message = InfoLists['sendQueue'][number];

const messages: readonly Column<Message>[] = [
  address('LocalAddr', (m) => m.localAddress),
  column('LPort', 5, (m) => m.localPort),
  address('RemoteAddr', (m) => m.remoteAddress),
  column('RPort', 5, (m) => m.remotePort),
  // RDS over TCP knows no other type of service.
  column('Tos', 4, () => 0),
  column('Seq', 16, (m) => m.sequence),
  column('Bytes', 10, (m) => m.bytes),
];

const sockets: readonly Column<InfoLists['sockets'][number]>[] = [
  address('BoundAddr', (s) => s.address),
  column('BPort', 5, (s) => s.port),
  address('ConnAddr', (s) => s.peerAddress || (s.address.includes(':') ? '::' : '0.0.0.0')),
  column('CPort', 5, (s) => s.peerPort),
  column('SndBuf', 10, (s) => s.sendBufferBytes),
  column('RcvBuf', 10, (s) => s.receiveBufferBytes),
  column('Inode', 8, (s) => s.inode),
];

type Connection = InfoLists['connections'][number];

const connections: readonly Column<Connection>[] = [
  address('LocalAddr', (c) => c.localAddress),
  address('RemoteAddr', (c) => c.remoteAddress),
  column('Tos', 4, () => 0),
  column('NextTX', 16, (c) => c.nextTx),
  column('NextRX', 16, (c) => c.nextRx),
  column('Flgs', 4, flags),
];

/** With -v: what the kernel's tool cannot show, as its records do not have it. */
const lanes: readonly Column<Connection>[] = [
  ...connections,
  column('Lane', 4, (c) => c.lane),
  column('NPaths', 6, (c) => c.npaths ?? '-'),
  column('PeerGen', 8, (c) =>
    c.peerGeneration === null ? '-' : c.peerGeneration.toString(16).padStart(8, '0'),
  ),
];

const tcpSockets: readonly Column<InfoLists['tcpSockets'][number]>[] = [
  address('LocalAddr', (t) => t.localAddress),
  column('LPort', 5, (t) => t.localPort),
  address('RemoteAddr', (t) => t.remoteAddress),
  column('RPort', 5, (t) => t.remotePort),
  column('HdrRemain', 10, (t) => t.headerBytesLeft),
  column('DataRemain', 10, (t) => t.dataBytesLeft),
  column('SentNxt', 10, (t) => t.lastSentNext),
  column('ExpectUna', 10, (t) => t.lastExpectedUna),
  column('SeenUna', 10, (t) => t.lastSeenUna),
];

/** The fourth letter, E, is another vendor's and never shown. */
function flags(c: Connection): string {
  return `${c.sending ? 's' : '-'}${c.connecting ? 'c' : '-'}${c.connected ? 'C' : '-'}-`;
}

function table<T>(title: string, columns: readonly Column<T>[], records: readonly T[]): string[] {
  const rows = records.map((record) => columns.map((one) => printable(one.cell(record))));
  const widths = columns.map(({ width }, i) =>
    rows.reduce((widest, row) => Math.max(widest, row[i]?.length ?? 0), width),
  );
  const line = (cells: readonly string[]): string =>
    cells.map((cell, i) => cell.padStart(widths[i] ?? 0)).join(' ');
  return ['', `${title}:`, line(columns.map((one) => one.title)), ...rows.map(line)];
}

export function counterLines(counters: Readonly<Record<string, number>>): string[] {
  const line = (name: string, value: string): string => `${name.padStart(25)} ${value.padStart(16)}`;
  return [
    ...['', 'Counters:', line('CounterName', 'Value')],
    ...Object.entries(counters).map(([name, value]) => line(printable(name), String(value))),
  ];
}

/** The lines of one list. Of connections rds-tools shows lane 0 alone; `verbose` shows all. */
export function listLines<L extends keyof InfoLists>(
  list: L,
  records: InfoLists[L],
  verbose: boolean,
): string[] {
  const of = records as never;
  switch (list) {
    case 'sockets':
      return table('RDS Sockets', sockets, of);
    case 'connections': {
      const all: readonly Connection[] = of;
      return verbose
        ? table('RDS Connections', lanes, all)
        : table(
            'RDS Connections',
            connections,
            all.filter(({ lane }) => lane === 0),
          );
    }
    case 'receiveQueue':
      return table('Receive Message Queue', messages, of);
    case 'sendQueue':
      return table('Send Message Queue', messages, of);
    case 'retransmitQueue':
      return table('Retransmit Message Queue', messages, of);
    default:
      return table('TCP Connections', tcpSockets, of);
  }
}
