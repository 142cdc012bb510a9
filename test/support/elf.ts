/**
 * What a shared library asks of others: the libraries it needs, the symbols it does not define, and the versions it wants
 * of them. A reader for 64-bit little-endian ELF (the System V ABI and its symbol versions in the Linux Standard Base),
 * so that checking a binary needs no tools.
 */
import { readFileSync } from 'node:fs';

export interface WantedSymbol {
  readonly name: string;
  /** As `GLIBC_2.17`; undefined for symbols without a version, such as Node's. */
  readonly version: string | undefined;
  /** May stay undefined. */
  readonly weak: boolean;
}

export interface Elf {
  readonly needed: readonly string[];
  readonly wanted: readonly WantedSymbol[];
  /** Names of sections. */
  readonly sections: readonly string[];
}

const SHT_DYNSYM = 11;
const SHT_DYNAMIC = 6;
const SHT_GNU_VERNEED = 0x6ffffffe;
const SHT_GNU_VERSYM = 0x6fffffff;
const DT_NEEDED = 1n;
const STB_WEAK = 2;

interface Section {
  readonly name: number;
  readonly type: number;
  readonly bytes: Buffer;
  readonly link: number;
  readonly info: number;
}

export function readElf(file: string): Elf {
  const bytes = readFileSync(file);
  const ident = bytes.subarray(0, 6);
  if (!ident.equals(Buffer.from([0x7f, 0x45, 0x4c, 0x46, 2, 1]))) {
    throw new Error(`${file} is not a 64-bit little-endian ELF file`);
  }
  const all = sectionsOf(bytes);
  const names = all[bytes.readUInt16LE(62)]!;
  const symbols = all.find(({ type }) => type === SHT_DYNSYM)!;
  const versions = all.find(({ type }) => type === SHT_GNU_VERSYM);
  const strings = all[symbols.link]!.bytes;
  return {
    needed: neededOf(all),
    wanted: wantedOf(symbols.bytes, strings, versions?.bytes, versionNames(all)),
    sections: all.map(({ name }) => text(names.bytes, name)),
  };
}

/**
 * Header: e_shoff at 40, e_shentsize at 58, e_shnum at 60. Section header: sh_name 0, sh_type 4, sh_offset 24, sh_size 32,
 * sh_link 40, sh_info 44.
 */
function sectionsOf(bytes: Buffer): Section[] {
  const offset = Number(bytes.readBigUInt64LE(40));
  const size = bytes.readUInt16LE(58);
  return Array.from({ length: bytes.readUInt16LE(60) }, (_, i) => {
    const at = offset + i * size;
    const begin = Number(bytes.readBigUInt64LE(at + 24));
    return {
      name: bytes.readUInt32LE(at),
      type: bytes.readUInt32LE(at + 4),
      bytes: bytes.subarray(begin, begin + Number(bytes.readBigUInt64LE(at + 32))),
      link: bytes.readUInt32LE(at + 40),
      info: bytes.readUInt32LE(at + 44),
    };
  });
}

/** Entries of 16 bytes: tag, value. */
function neededOf(all: readonly Section[]): string[] {
  const dynamic = all.find(({ type }) => type === SHT_DYNAMIC);
  if (dynamic === undefined) return [];
  const strings = all[dynamic.link]!.bytes;
  const names: string[] = [];
  for (let at = 0; at < dynamic.bytes.length; at += 16) {
    if (dynamic.bytes.readBigUInt64LE(at) !== DT_NEEDED) continue;
    names.push(text(strings, Number(dynamic.bytes.readBigUInt64LE(at + 8))));
  }
  return names;
}

/** Entries of 24 bytes: st_name 0, st_info 4, st_shndx 6; the version of symbol i is word i of the versions. */
function wantedOf(
  symbols: Buffer,
  strings: Buffer,
  versions: Buffer | undefined,
  names: ReadonlyMap<number, string>,
): WantedSymbol[] {
  const wanted: WantedSymbol[] = [];
  for (let i = 1; i * 24 < symbols.length; i++) {
    if (symbols.readUInt16LE(i * 24 + 6) !== 0) continue;
    wanted.push({
      name: text(strings, symbols.readUInt32LE(i * 24)),
      version: names.get(versions?.readUInt16LE(i * 2) ?? 0),
      weak: symbols.readUInt8(i * 24 + 4) >> 4 === STB_WEAK,
    });
  }
  return wanted;
}

/**
 * The versions wanted, by their number in the versions table: for each library a record (count at 2, first entry at 8,
 * next record at 12) with entries (number at 6, name at 8, next at 12); offsets are relative.
 */
function versionNames(all: readonly Section[]): Map<number, string> {
  const names = new Map<number, string>();
  const section = all.find(({ type }) => type === SHT_GNU_VERNEED);
  if (section === undefined) return names;
  const { bytes } = section;
  const strings = all[section.link]!.bytes;
  for (let record = 0, i = 0; i < section.info; i++, record += bytes.readUInt32LE(record + 12)) {
    let entry = record + bytes.readUInt32LE(record + 8);
    for (let k = 0; k < bytes.readUInt16LE(record + 2); k++, entry += bytes.readUInt32LE(entry + 12)) {
      names.set(bytes.readUInt16LE(entry + 6), text(strings, bytes.readUInt32LE(entry + 8)));
    }
  }
  return names;
}

function text(strings: Buffer, offset: number): string {
  return strings.toString('latin1', offset, strings.indexOf(0, offset));
}
