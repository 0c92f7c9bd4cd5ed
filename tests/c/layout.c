/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the layout of every struct of the C API: callers were compiled with it. */
#include <episodic/c/episodic.h>
#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define AT(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(type, field))

int main(void) {
  SIZE(episodic_range);
  SIZE(episodic_model_info);
  AT(episodic_model_info, vocab_size);
  AT(episodic_model_info, has_chat_format);
  SIZE(episodic_sequence_info);
  AT(episodic_sequence_info, has_memory);
  AT(episodic_sequence_info, window_bytes);
  SIZE(episodic_generate_options);
  AT(episodic_generate_options, max_new);
  AT(episodic_generate_options, temperature);
  AT(episodic_generate_options, seed);
  AT(episodic_generate_options, chat);
  AT(episodic_generate_options, reread);
  AT(episodic_generate_options, n_stop);
  AT(episodic_generate_options, recall);
  AT(episodic_generate_options, rerank);
  SIZE(episodic_recalled);
  AT(episodic_recalled, rank);
  AT(episodic_recalled, attention);
  SIZE(episodic_passage);
  AT(episodic_passage, score);
  SIZE(episodic_step);
  AT(episodic_step, sequence);
  AT(episodic_step, logits);
  AT(episodic_step, code);
  AT(episodic_step, message);
  SIZE(episodic_load_options);
  AT(episodic_load_options, device);
  AT(episodic_load_options, device_number);
  SIZE(episodic_prompt);
  AT(episodic_prompt, length);
  AT(episodic_prompt, n_ids);
  AT(episodic_prompt, options);
  AT(episodic_prompt, asks);
  AT(episodic_prompt, answer);
  AT(episodic_prompt, message);
  SIZE(episodic_view);
  AT(episodic_view, dtype);
  AT(episodic_view, row_stride);
  AT(episodic_view, head_stride);
  SIZE(episodic_shape);
  AT(episodic_shape, rotary_theta);
  AT(episodic_shape, frequencies);
  AT(episodic_shape, interleaved);
  AT(episodic_shape, softcap);
  SIZE(episodic_memory_info);
  AT(episodic_memory_info, open_tokens);
  AT(episodic_memory_info, kept);
  SIZE(episodic_layer);
  AT(episodic_layer, frequencies);
  AT(episodic_layer, softcap);
  SIZE(episodic_memory_options);
  AT(episodic_memory_options, model);
  AT(episodic_memory_options, layers);
  SIZE(episodic_device_options);
  AT(episodic_device_options, shape);
  AT(episodic_device_options, dtype);
  AT(episodic_device_options, device_number);
  AT(episodic_device_options, max_tokens);
  AT(episodic_device_options, stream);
  AT(episodic_device_options, rotated);
  return 0;
}
