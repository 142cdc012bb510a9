/** Text that others have chosen (names of processes, devices, paths), on its way to a terminal. */

/** The text without control characters and marks of writing direction: one line, no commands to the terminal, no disguise. */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]+/gu, ' ');
}

/**
 * Indented JSON in which such characters are escaped, too; JSON itself escapes those below U+0020 alone. Integers of 64 bits, for which it has
 * no numbers, are texts.
 */
export function printableJson(value: unknown): string {
  return escaped(JSON.stringify(value, bigintAsText, 2));
}

/** The same in one line. */
export function printableJsonLine(value: unknown): string {
  return escaped(JSON.stringify(value));
}

function bigintAsText(_name: string, value: unknown): unknown {
  return typeof value === 'bigint' ? `${value}` : value;
}

function escaped(json: string): string {
  return json.replace(
    /[\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
