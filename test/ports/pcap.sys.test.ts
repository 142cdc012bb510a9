/** Capture files that a port writes, and receives again. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { after, afterEach, describe, it } from 'node:test';
import type { Clock } from '../../src/core/clock.ts';
import { createHostTable } from '../../src/core/host-table.ts';
import { PcapPort } from '../../src/ports/pcap.ts';
import { writePcapHeader, writePcapRecord } from '../../src/wire/pcap.ts';
import { assertFrames, FrameSink, frame, sendAll } from '../support/frames.ts';
import { addHead } from '../support/guest-memory.ts';
import { closePorts, guest, opened } from '../support/ports.ts';

const folder = mkdtempSync(join(tmpdir(), 'zerotx-pcap-'));

after(() => rmSync(folder, { recursive: true }));
afterEach(closePorts);

const frames = Array.from({ length: 200 }, (_, i) => frame(14 + ((i * 977) % 60_000), i));

describe('a capture port', { timeout: 60_000 }, () => {
  it("writes what is sent, a guest's and the host's, and receives it again", async () => {
    const file = join(folder, 'all.pcap');
    const writer = await opened(new PcapPort({ name: 'w', file }));
    const source = guest({ memoryBytes: 16 << 20 });
    await source.send(writer, frames.slice(0, 100));
    const host = createHostTable(100, 66_000);
    for (const one of frames.slice(100)) addHead(host, one);
    await sendAll(writer, host);
    await writer.close();
    assert.equal(writer.counters.txFrames, frames.length);
    const reader = await opened(new PcapPort({ name: 'r', replay: file }));
    const sink = new FrameSink(reader);
    await reader.replayed();
    assertFrames(sink.frames, frames);
    assert.equal(reader.counters.rxBytes, writer.counters.txBytes);
  });

  it('offers again what was not taken', async () => {
    const file = join(folder, 'held.pcap');
    const writer = await opened(new PcapPort({ name: 'w', file }));
    await guest({ memoryBytes: 16 << 20 }).send(writer, frames);
    await writer.close();
    const reader = new PcapPort({ name: 'r', replay: file });
    const sink = new FrameSink(reader);
    sink.takes = 3;
    await opened(reader);
    while (sink.frames.length < frames.length) {
      reader.resume();
      await new Promise((resolve) => setImmediate(resolve));
    }
    await reader.replayed();
    assertFrames(sink.frames, frames);
  });

  it('cuts frames to the length that was asked for, and such are not received', async () => {
    const file = join(folder, 'cut.pcap');
    const writer = await opened(new PcapPort({ name: 'w', file, snapBytes: 96 }));
    const sent = [frame(96, 1), frame(97, 2), frame(1514, 3)];
    await guest().send(writer, sent);
    await writer.close();
    const bytes = readFileSync(file);
    assert.equal(bytes.length, 24 + 3 * (16 + 96));
    assert.equal(Buffer.compare(bytes.subarray(-96), sent[2]!.subarray(0, 96)), 0);
    const reader = new PcapPort({ name: 'r', replay: file });
    const sink = new FrameSink(reader);
    await opened(reader);
    await reader.replayed();
    assertFrames(sink.frames, sent.slice(0, 1));
    assert.equal(reader.counters.rxErrors, 2);
  });

  it('replays at the pace of the capture', async () => {
    const file = join(folder, 'slow.pcap');
    const out = Buffer.alloc(4096);
    let at = writePcapHeader(out, 0, 65_535);
    for (const [i, ms] of [0, 10, 10, 4000].entries()) {
      at += writePcapRecord(out, at, 1000 + Math.floor(ms / 1000), (ms % 1000) * 1e6, 60, 60);
      out.set(frame(60, i), at);
      at += 60;
    }
    writeFileSync(file, out.subarray(0, at));
    let nowMs = 5;
    const waits: number[] = [];
    const clock: Clock = {
      now: () => nowMs,
      after(ms, task) {
        waits.push(ms);
        nowMs += ms;
        queueMicrotask(task);
        return () => {};
      },
      soon: () => () => {},
    };
    const reader = new PcapPort({ name: 'r', replay: file, speed: 2, clock });
    const sink = new FrameSink(reader);
    await opened(reader);
    await reader.replayed();
    assert.equal(sink.frames.length, 4);
    assert.deepEqual(waits, [5, 1995]);
  });

  it('takes nothing while the disk is slow', async () => {
    const slow = new PassThrough({ highWaterMark: 1 });
    const port = await opened(new PcapPort({ name: 'w', file: slow }));
    const large = Array.from({ length: 64 }, (_, i) => frame(60_000, i));
    const source = guest({ memoryBytes: 8 << 20 });
    let isSent = false;
    const sent = (async () => {
      for (let i = 0; i < 4; i++) await source.send(port, large);
      isSent = true;
    })();
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(isSent, false);
    let bytes = 0;
    slow.on('data', (data: Buffer) => {
      bytes += data.length;
    });
    await sent;
    await port.close();
    assert.equal(bytes, 24 + 4 * 64 * 60_016);
  });

  it('says what is wrong with a file', async () => {
    await assert.rejects(new PcapPort({ name: 'r', replay: join(folder, 'none') }).open(), {
      code: 'ENOENT',
    });
    await assert.rejects(new PcapPort({ name: 'w', file: join(folder, 'no', 'where') }).open(), {
      code: 'ENOENT',
    });
    const bad = join(folder, 'bad.pcap');
    writeFileSync(bad, 'nothing of the kind, but long enough');
    await assert.rejects(new PcapPort({ name: 'r', replay: bad }).open(), { code: 'ZTX_BAD_PCAP' });
    const out = Buffer.alloc(40);
    writePcapHeader(out, 0, 65_535);
    writePcapRecord(out, 24, 0, 0, 0x7fff_ffff, 60);
    writeFileSync(bad, out);
    const reader = await opened(new PcapPort({ name: 'r', replay: bad }));
    await reader.replayed();
    assert.equal((reader.failure as NodeJS.ErrnoException | null)?.code, 'ZTX_BAD_PCAP');
  });
});
