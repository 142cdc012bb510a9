/**
 * tshark with the project's dissector (contrib/wireshark/rds-tcp.lua), for tests.
 *
 * It runs as an ordinary user in a folder of its own: Wireshark 4.4 loads no scripts for root, and what a capture makes it
 * do is nothing that root should do. A complaint of Lua's in the output fails the test, wherever it stands.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ROOT } from './sources.ts';

const DISSECTOR = join(ROOT, 'contrib/wireshark/rds-tcp.lua');
const NOBODY = 65_534;
const TIMEOUT_MS = 60_000;

/** False, or why tests with tshark cannot run here. */
export function noTshark(): string | false {
  const { error, status } = spawnSync('tshark', ['-v'], { timeout: TIMEOUT_MS });
  return error !== undefined || status !== 0 ? 'needs tshark (Debian package tshark)' : false;
}

/** Versions differ in how they print a flag: 4.4 says True where 4.0 says 1. */
function valuesOf(column: string): string[] {
  if (column === '') return [];
  return column.split(',').map((value) => (value === 'True' ? '1' : value === 'False' ? '0' : value));
}

/** All values of each field in one packet, in order. */
export type FieldRow = Record<string, string[]>;

export class Tshark {
  readonly #folder = mkdtempSync(join(tmpdir(), 'ztx-tshark-'));
  readonly #scripts: string[] = [];

  constructor() {
    chmodSync(this.#folder, 0o777);
    this.script('rds-tcp.lua', readFileSync(DISSECTOR, 'utf8'));
  }

  /** Loads one more Lua script, after those before it. */
  script(name: string, text: string): void {
    const path = join(this.#folder, name);
    writeFileSync(path, text);
    chmodSync(path, 0o644);
    this.#scripts.push(path);
  }

  /** What it prints for the capture. */
  run(capture: Uint8Array, args: readonly string[]): string {
    const path = join(this.#folder, 'capture.pcap');
    writeFileSync(path, capture, { mode: 0o644 });
    const scripts = this.#scripts.flatMap((script) => ['-X', `lua_script:${script}`]);
    const { status, stdout, stderr, error } = spawnSync('tshark', ['-n', ...scripts, '-r', path, ...args], {
      encoding: 'utf8',
      maxBuffer: 1 << 28,
      timeout: TIMEOUT_MS,
      cwd: this.#folder,
      env: { PATH: process.env.PATH, HOME: this.#folder },
      ...(process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {}),
    });
    assert.equal(error, undefined);
    assert.equal(status, 0, stderr);
    const complaint = /^.*(?:Lua Error|Lua: |\.lua:\d+:).*$/im.exec(`${stderr}\n${stdout}`);
    assert.equal(complaint, null, complaint?.[0]);
    return stdout;
  }

  /** The fields of every packet that passes `filter`. */
  fields(capture: Uint8Array, names: readonly string[], args: readonly string[] = []): FieldRow[] {
    const wanted = names.flatMap((name) => ['-e', name]);
    const format = ['-T', 'fields', '-E', 'separator=/t', '-E', 'occurrence=a', '-E', 'aggregator=,'];
    return this.run(capture, [...args, ...format, ...wanted])
      .split('\n')
      .slice(0, -1)
      .map((line) => {
        const columns = line.split('\t');
        return Object.fromEntries(names.map((name, i) => [name, valuesOf(columns[i]!)]));
      });
  }

  close(): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
