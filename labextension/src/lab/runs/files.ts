/** Puts what a person exports into a file of the browser. */

/** A name without characters that file systems refuse. */
export function fileName(words: string, ending: string): string {
  return `${words.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|-+$/g, "") || "chart"}.${ending}`;
}

export function save(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => {
    URL.revokeObjectURL(link.href);
  }, 10_000);
}

/** An SVG picture as a PNG of twice its size. */
export async function rasterised(picture: { text: string; width: number; height: number }): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(picture.text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * picture.width;
  canvas.height = 2 * picture.height;
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  const found = await new Promise<Blob | null>((done) => {
    canvas.toBlob(done, "image/png");
  });
  if (found === null) throw new Error("The browser could not make a PNG of this chart. Save it as SVG.");
  return found;
}
