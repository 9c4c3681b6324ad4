// wgmma: products a warpgroup starts and waits for later.  sm_90a.
#pragma once
#include "mbarrier.h"
#include "mma.h"

namespace emu {

constexpr int WARPGROUPS = MAX_THREADS / 128;

// One product: what its tiles are, and where each thread's accumulators are kept.
struct Product {
  void (*multiply)(Product &);
  SharedTile left, right;
  bool from_registers, keep, done;  // keep: add to the accumulators
  float scale;
  int warpgroup, columns;
  Epoch epoch[4];                   // of each warp's share
  uint32_t rows[128][4];            // A in registers
  std::vector<int> places[128];
};
static std::vector<Product> products[WARPGROUPS];
struct GroupCall { int count, line; Product *product; };
static GroupCall group_calls[WARPGROUPS];

static void reset_products() {
  for (auto &each : products) each.clear();
  memset(group_calls, 0, sizeof group_calls);
}

constexpr uint32_t TOKEN = 0xffd00000, TOKEN_MASK = 0xfff00000;

// The entry a token stands for, or -1 for a number.
static int token_place(float x) {
  const uint32_t bits = as<uint32_t>(x);
  return (bits & TOKEN_MASK) == TOKEN ? (int)(bits & ~TOKEN_MASK) : -1;
}

// Where an element lies, by the canonical layouts of the PTX manual: eight lines of one swizzle width (16 bytes
// without swizzle) make a pattern; a line runs along k, or along the rows of a transposed tile.
static uint64_t tile_offset(SharedTile tile, int row, int k, int bytes) {
  static const int SWIZZLE[] = {0, 3, 2, 1};
  const uint64_t start = (tile.descriptor & 0x3fff) << 4, leading = (tile.descriptor >> 16 & 0x3fff) << 4;
  const uint64_t stride = (tile.descriptor >> 32 & 0x3fff) << 4;
  const int swizzle = SWIZZLE[tile.descriptor >> 62], width = 16 << swizzle;
  const int line = tile.transposed ? k : row, along = (tile.transposed ? row : k) * bytes;
  // Without swizzle the two offsets of a transposed tile change places.
  const bool exchanged = tile.transposed && !swizzle;
  const uint64_t lines = exchanged ? leading : stride, widths = exchanged ? stride : leading;
  // Swizzled lines along k are never longer than one width.
  const uint64_t apart = tile.transposed || !swizzle ? widths : width;
  const uint64_t at = start + line / 8 * lines + line % 8 * width + along / width * apart + along % width;
  return swizzled(at, swizzle);
}

// Bytes of an element, and how one is read from memory.
template <class T> constexpr int BYTES = 4 / PACKED<T>;
template <class T> static float tile_element_at(const char *p) {
  return element(T(), BYTES<T> == 2 ? get<uint16_t>(p) : get<uint32_t>(p), 0);
}

template <class T> static float tile_element(SharedTile tile, int row, int k) {
  return tile_element_at<T>(shared_data + tile_offset(tile, row, k, BYTES<T>));
}

// D (64 x N) from A (64 x K) and B (K x N), K of 32 bytes; a warp has 16 rows, laid out as in mma.h.
template <class T> static void multiply_tiles(Product &product) {
  constexpr int K = 32 / BYTES<T>, P = PACKED<T>;
  const int N = product.columns;
  float left[64][K], right[256][K];
  for (int n = 0; n < N; ++n)
    for (int k = 0; k < K; ++k) right[n][k] = tile_element<T>(product.right, n, k);
  for (int m = 0; !product.from_registers && m < 64; ++m)
    for (int k = 0; k < K; ++k) left[m][k] = tile_element<T>(product.left, m, k);
  for (int t = 0; product.from_registers && t < 128; ++t)
    for (int r = 0; r < 4; ++r)
      for (int s = 0; s < P; ++s)
        left[t / 32 * 16 + t % 32 / 4 + 8 * (r % 2)][t % 4 * P + s + 4 * P * (r / 2)] =
            element(T(), product.rows[t][r], s);
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < N / 2; ++i) {
      const int m = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2), n = t % 4 * 2 + i % 2 + 8 * (i / 4);
      float &value = threads[product.warpgroup * 128 + t].products.accumulators[product.places[t][i]].value;
      float sum = product.keep ? value : 0;
      for (int k = 0; k < K; ++k) sum += product.scale * left[m][k] * right[n][k];
      value = sum;
    }
}

// 16 bytes of a tile, read by one warp: landed and waited for, fenced, and known to the warp.
static void check_chunk(uint32_t offset, int warp) {
  Thread *caller = current;
  check_shared(offset, 16, "wgmma");
  for (uint32_t i = cell_at(offset); i <= cell_at(offset + 15); ++i) {
    for (int lane = 0; lane < WARP; lane += WARP - 1) {  // the first and the last stand for all
      current = &threads[warp * WARP + lane];
      note_read(cells[i], byte_of(i), thread_count + warp);
      check_proxy(cells[i].writer, cells[i].write_epoch, byte_of(i));
    }
    current = caller;
    // A copy counts as written from its start; that it landed is the race check's business.
    if (request->strict && cells[i].writer < 0) suspect(offset, 16);
  }
}

// A warp reads its own 16 rows of A and all of B, 32 bytes of k, 16 bytes at once; transposed tiles have 16-bit elements.
static void check_tile(SharedTile tile, int rows, int warpgroup, bool left) {
  const int row_step = tile.transposed ? 8 : 1, k_step = tile.transposed ? 1 : 8;
  for (int row = 0; row < rows; row += row_step)
    for (int k = 0; k < 16; k += k_step)
      for (int warp = 0; warp < 4; ++warp)
        if (!left || row / 16 == warp) check_chunk((uint32_t)tile_offset(tile, row, k, 2), warpgroup * 4 + warp);
}

static void start_product(Product &product, int rows) {
  if (!product.from_registers) check_tile(product.left, 64, product.warpgroup, true);
  check_tile(product.right, rows, product.warpgroup, false);
  for (int warp = 0; warp < 4; ++warp) product.epoch[warp] = own[warp_actor(product.warpgroup * 128 + warp * WARP)]++;
  if (!request->late) product.multiply(product), product.done = true;
}

// Accumulators go into the thread's table; the registers get tokens.
static std::vector<int> take_accumulators(float *registers, int count) {
  Products &mine = current->products;
  std::vector<int> places;
  for (int i = 0; i < count; ++i) {
    int place = token_place(registers[i]);
    if (place < 0) {
      if (!mine.fenced) fail(PROTOCOL, "wgmma on registers used before, with no wgmma.fence since");
      place = mine.accumulators.size();
      mine.accumulators.push_back({registers[i], 0});
    }
    ++mine.accumulators[place].pending;
    registers[i] = as<float>(TOKEN | place);
    places.push_back(place);
  }
  return places;
}

template <class T>
void wgmma(float *registers, int columns, const uint32_t *rows, SharedTile left, SharedTile right, bool keep, float scale) {
  const int group = current->index / 128, lane = current->index % 128;
  if (thread_count < (group + 1) * 128) fail(LANES, "wgmma needs warpgroups of 128 threads");
  GroupCall &call = group_calls[group];
  if (!call.count++) {
    Product made = {multiply_tiles<T>, left, right, rows != nullptr, keep, false, scale, group, columns};
    products[group].push_back(made);
    call.line = here;
  }
  Product &product = products[group].back();
  if (call.line != here)
    fail(DIVERGENCE, "other threads of the warpgroup are at another wgmma (PTX line %d)", call.line);
  if (product.right.descriptor != right.descriptor || (!rows && product.left.descriptor != left.descriptor))
    fail(PROTOCOL, "wgmma with different descriptors in one warpgroup");
  if (rows) memcpy(product.rows[lane], rows, sizeof product.rows[lane]);
  product.places[lane] = take_accumulators(registers, columns / 2);
  current->products.open.push_back(products[group].size() - 1);
  if (call.count < 128) return wait("wgmma");
  call.count = 0;
  start_product(product, columns);
  for (int i = group * 128; i < (group + 1) * 128; ++i)
    if (i != current->index) wake(i);
}

void wgmma_fence() { current->products.fenced = true; }

void wgmma_commit() {
  current->products.groups.push_back(std::move(current->products.open));
  current->products.open.clear();
}

void wgmma_wait(uint32_t pending) {
  Products &mine = current->products;
  const int group = current->index / 128, actor = warp_actor(current->index);
  const size_t finished = mine.groups.size() > pending ? mine.groups.size() - pending : 0;
  for (size_t i = 0; i < finished; ++i)
    for (int number : mine.groups[i]) {
      Product &product = products[group][number];
      if (!product.done) product.multiply(product), product.done = true;
      for (int place : product.places[current->index % 128]) --mine.accumulators[place].pending;
      Epoch &seen = learn(current->index)[actor];
      seen = std::max(seen, product.epoch[current->warp % 4]);
    }
  mine.groups.erase(mine.groups.begin(), mine.groups.begin() + finished);
  mine.fenced = false;
}

// How many there are at the start only ptxas knows, so that no one runs out of them here.
void change_registers(uint32_t count) {
  if (count < 24 || count > 256 || count % 8) fail(PROTOCOL, "setmaxnreg to %u registers", count);
  if (thread_count % 128) fail(LANES, "setmaxnreg needs warpgroups of 128 threads");
}

// A register after a wait: its value if it holds the token of a finished product.
float settled(float x) {
  const int place = token_place(x);
  const auto &table = current->products.accumulators;
  return place < 0 || (size_t)place >= table.size() || table[place].pending ? x : table[place].value;
}

}  // namespace emu
