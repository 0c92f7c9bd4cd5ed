/* SPDX-License-Identifier: Apache-2.0 */
/* The C API as it is installed: a memory under attention of one's own. */
#include <episodic/c/episodic.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  enum { kTokens = 4, kHeads = 2, kDim = 4 };
  float numbers[kTokens * kHeads * kDim], result[kTokens * kHeads * kDim];
  float surprise[kTokens] = {1, 2, 3, 1};
  episodic_memory memory = NULL;
  episodic_memory_info info;
  episodic_shape shape;
  episodic_view view, out;
  int i, step;
  memset(&shape, 0, sizeof shape);
  shape.struct_size = sizeof shape;
  shape.n_layers = 1;
  shape.n_heads = shape.n_kv_heads = kHeads;
  shape.head_dim = shape.rotary_dim = kDim;
  shape.rotary_theta = 10000;
  memset(&view, 0, sizeof view);
  view.struct_size = sizeof view;
  view.data = numbers;
  view.n = kTokens;
  view.heads = kHeads;
  view.dim = kDim;
  out = view;
  out.data = result;
  if (episodic_api_version() < EPISODIC_API_VERSION) return 1;
  if (episodic_memory_new("{\"n_init\": 2, \"n_local\": 8, \"n_mem\": 8, \"chunk\": 4, \"min_block\": 2}", &shape,
                          &memory) != EPISODIC_OK) {
    fprintf(stderr, "%s\n", episodic_last_error());
    return 1;
  }
  for (step = 0; step < 10; ++step) {
    for (i = 0; i < kTokens * kHeads * kDim; ++i) numbers[i] = 0.1f * (float)((i * 7 + step * 3) % 11 - 5);
    if (episodic_memory_begin_step(memory, kTokens, 0) != EPISODIC_OK ||
        episodic_memory_attend(memory, 0, &view, &view, &view, &out) != EPISODIC_OK ||
        episodic_memory_end_step(memory, surprise, kTokens) != EPISODIC_OK) {
      fprintf(stderr, "%s\n", episodic_last_error());
      return 1;
    }
  }
  info.struct_size = sizeof info;
  if (episodic_memory_get_info(memory, &info) != EPISODIC_OK || info.tokens != 40) return 1;
  return episodic_memory_free(memory) == EPISODIC_OK ? 0 : 1;
}
