/** Text that others have chosen (names of processes, devices, paths), on its way to a terminal. */

/** The text without control characters: one line, and no commands to the terminal. */
export function printable(text: string): string {
  return text.replace(/\p{Cc}+/gu, ' ');
}
