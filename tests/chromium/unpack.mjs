// Unpack the browser, the libraries that machines may lack, and a font, into node_modules/unpacked.

import { mkdir } from "node:fs/promises";

await mkdir("node_modules/unpacked", { recursive: true });
process.env.TMPDIR = `${process.cwd()}/node_modules/unpacked`; // where the package unpacks

const { inflate } = await import("@sparticuz/chromium");

for (const name of ["chromium.br", "al2023.tar.br", "fonts.tar.br"]) {
  await inflate(`node_modules/@sparticuz/chromium/bin/${name}`);
}
