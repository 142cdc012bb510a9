/** Files and folders that a lab file names, and that are not there: told with their place, before opening a port fails for it. */
import { dirname } from 'node:path';
import type { LabDocument } from './document.ts';
import type { Kind, LabPort } from './lab.ts';
import type { PortPlaces } from './together.ts';

/** A path that has to be there when the ports are opened. */
interface Need {
  readonly key: Kind | 'capture';
  readonly what: string;
  readonly path: string;
}

export function warnOfFiles(
  document: LabDocument,
  ports: readonly LabPort[],
  places: ReadonlyMap<string, PortPlaces>,
  isThere: (path: string) => boolean,
): void {
  for (const port of ports) {
    const section = places.get(port.name)?.section;
    for (const { key, what, path } of needsOf(port)) {
      if (isThere(path)) continue;
      document.warn(section?.valuePlace(key), `ports.${port.name}.${key}: ${what} ${path} is missing`);
    }
  }
}

function needsOf({ port, capture }: LabPort): Need[] {
  const { kind, options } = port;
  const needs: Need[] = [];
  const folderOf = (path: string, what: string, key: Need['key'] = kind): void => {
    needs.push({ key, what: `the folder of its ${what}`, path: dirname(path) });
  };
  if (kind === 'vhost') folderOf(options.path, 'socket');
  if (kind === 'stream' && options.path !== undefined) folderOf(options.path, 'socket');
  if (kind === 'dgram' && 'path' in options.local) folderOf(options.local.path, 'socket');
  if (kind === 'pcap') {
    if (typeof options.file === 'string') folderOf(options.file, 'file');
    if (typeof options.replay === 'string')
      needs.push({ key: kind, what: 'the file to replay', path: options.replay });
  }
  if (capture !== null) folderOf(capture.file, 'file', 'capture');
  return needs;
}
