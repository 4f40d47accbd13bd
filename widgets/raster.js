// Very many rectangles on a canvas: pixels are written directly, and beside them whose they are.
//
//   pixels  colour of every device pixel          ids  the rectangle there, or -1
//
// Drawing is linear in rectangles and pixels; finding what is under the pointer is one look-up.
export const PLAIN = 0, LINES = 1, DIAGONAL = 2, DOTS = 3;

export class Raster {
  // x0, x1, y0, y1: arrays of values; style: Uint8Array of positions in the styles of `draw`.
  constructor({ x0, x1, y0, y1, style }) {
    Object.assign(this, { x0, x1, y0, y1, style, count: x0.length });
    this.width = this.height = 0;
    this.canvas = document.createElement("canvas");
  }

  // styles: [{fill: [r, g, b], edge: [r, g, b], texture}]; faded: styles for rectangles of which
  // shown[i] is 0. Returns the canvas, as large as the camera's box times `scale`.
  draw(camera, styles, faded, shown, scale) {
    this.resize(Math.max(Math.round(camera.box.width * scale), 1), Math.max(Math.round(camera.box.height * scale), 1));
    this.drawn = { ...camera.view };
    const { pixels, ids, width, height, x0, x1, y0, y1, style } = this;
    pixels.fill(0);
    ids.fill(-1);
    const tables = [faded, styles].map((list) => list.map(({ fill, edge, texture }) => [packed(fill), packed(edge), texture]));
    const { view, down } = camera;
    const sx = width / (view.x1 - view.x0), sy = height / (view.y1 - view.y0);
    for (let pass = shown ? 0 : 1; pass < 2; pass++) { // what is faded lies below
      for (let i = 0; i < this.count; i++) {
        if (shown && shown[i] !== pass) continue;
        const a = (x0[i] - view.x0) * sx, b = (x1[i] - view.x0) * sx;
        if (b < 0 || a >= width) continue;
        const p = down ? (y0[i] - view.y0) * sy : height - (y1[i] - view.y0) * sy;
        const q = down ? (y1[i] - view.y0) * sy : height - (y0[i] - view.y0) * sy;
        if (q < 0 || p >= height) continue;
        const left = Math.round(a), top = Math.round(p);
        const l = left > 0 ? left : 0, t = top > 0 ? top : 0;
        const right = Math.max(Math.round(b), left + 1), bottom = Math.max(Math.round(q), top + 1);
        const r = right < width ? right : width, u = bottom < height ? bottom : height;
        if (l >= r || t >= u) continue;
        const [fill, edge, texture] = tables[pass][style[i]];
        for (let y = t, row = t * width; y < u; y++, row += width) {
          if (r - l < 12) for (let at = row + l; at < row + r; at++) { pixels[at] = fill; ids[at] = i; }
          else { pixels.fill(fill, row + l, row + r); ids.fill(i, row + l, row + r); }
        }
        if (r - l < 4 || u - t < 4) continue;
        if (texture && u - t > 7 && r - l > 7) this.weave(texture, edge, l, t, r, u, scale);
        if (top >= 0) pixels.fill(edge, top * width + l, top * width + r);
        if (bottom <= height) pixels.fill(edge, (bottom - 1) * width + l, (bottom - 1) * width + r);
        if (left >= 0) for (let y = t; y < u; y++) pixels[y * width + left] = edge;
        if (right <= width) for (let y = t; y < u; y++) pixels[y * width + right - 1] = edge;
      }
    }
    this.canvas.getContext("2d").putImageData(this.image, 0, 0);
    return this.canvas;
  }

  weave(texture, colour, l, t, r, u, scale) {
    const { pixels, width } = this, apart = Math.round((texture === LINES ? 9 : 7) * scale);
    for (let y = t; y < u; y++) {
      if (texture === LINES) { if (y % apart === 0) pixels.fill(colour, y * width + l, y * width + r); continue; }
      if (texture === DOTS && y % apart > scale) continue;
      const phase = texture === DOTS ? 0 : y % apart;
      for (let x = l + ((phase - l) % apart + apart) % apart; x < r; x += apart) {
        pixels[y * width + x] = colour;
        if (texture === DOTS && x + 1 < r) pixels[y * width + x + 1] = colour;
      }
    }
  }

  resize(width, height) {
    if (this.width === width && this.height === height) return;
    Object.assign(this, { width, height });
    this.canvas.width = width;
    this.canvas.height = height;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.ids = new Int32Array(width * height);
  }

  // The rectangle at a point of the camera's box, in CSS pixels, or -1; near ones count for thin ones.
  pick(x, y, scale, reach = 2) {
    const cx = Math.round(x * scale), cy = Math.round(y * scale), found = this.at(cx, cy);
    if (found >= 0) return found;
    for (let d = 1; d <= reach * scale; d++) {
      for (const [dx, dy] of [[0, -d], [0, d], [-d, 0], [d, 0]]) {
        const near = this.at(cx + dx, cy + dy);
        if (near >= 0) return near;
      }
    }
    return -1;
  }

  at(x, y) { return x < 0 || y < 0 || x >= this.width || y >= this.height ? -1 : this.ids[y * this.width + x]; }
}

function packed([r, g, b]) { return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0; }

// A colour moved towards another by a share from 0 to 1.
export function blend(one, other, share) { return one.map((c, i) => Math.round(c + (other[i] - c) * share)); }
