/** The MAC address of a device or a front-end, as options have it. */
import { wrongRange } from '../core/arguments.ts';
import { MAC_BYTES, parseMac } from '../wire/ethernet.ts';

/** The one that was given; throws ERR_OUT_OF_RANGE for what is not the address of one station. Left out: a random one. */
export function macOption(text: string | undefined): Uint8Array {
  if (text === undefined) return randomMac();
  const mac = parseMac(text);
  if (mac === null || ((mac[0] as number) & 1) !== 0) {
    throw wrongRange('options.mac', 'the MAC address of one station, such as 02:00:00:00:00:01', text);
  }
  return mac;
}

function randomMac(): Uint8Array {
  const mac = crypto.getRandomValues(new Uint8Array(MAC_BYTES));
  // Locally administered, unicast.
  mac[0] = ((mac[0] as number) & 0xfc) | 0x02;
  return mac;
}
