/* SPDX-License-Identifier: Apache-2.0 */
/* usage: ask_c MODEL TEXT_FILE QUESTION
 *
 * Reads a text of any length and answers a question about it, through the C API alone. */
#include <episodic/c/episodic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(void) {
  fprintf(stderr, "%s\n", episodic_last_error());
  return 1;
}

static int32_t show_progress(int64_t done, int64_t total, void* user) {
  (void)user;
  fprintf(stderr, "\r%lld of %lld tokens", (long long)done, (long long)total);
  return 0; /* go on */
}

static int32_t show_text(int64_t id, const char* text, size_t length, void* user) {
  (void)id;
  (void)user;
  fwrite(text, 1, length, stdout);
  fflush(stdout);
  return 0;
}

static char* contents(const char* path, size_t* length) {
  FILE* file = fopen(path, "rb");
  char* text = NULL;
  if (!file) return NULL;
  if (fseek(file, 0, SEEK_END) == 0) {
    const long size = ftell(file);
    rewind(file);
    text = size < 0 ? NULL : malloc((size_t)size + 1);
    if (text) *length = fread(text, 1, (size_t)size, file);
  }
  fclose(file);
  return text;
}

int main(int argc, char** argv) {
  episodic_model model = NULL;
  episodic_sequence sequence = NULL;
  episodic_answer answer = NULL;
  episodic_generate_options options;
  size_t length = 0;
  char* text = NULL;
  int status = 1;
  if (argc != 4) {
    fprintf(stderr, "usage: ask_c MODEL TEXT_FILE QUESTION\n");
    return 2;
  }
  text = contents(argv[2], &length);
  if (!text) {
    fprintf(stderr, "%s: cannot be read\n", argv[2]);
    return 1;
  }
  episodic_generate_options_init(&options);
  options.max_new = 12;
  if (episodic_model_load(argv[1], NULL, &model) != EPISODIC_OK ||
      episodic_sequence_new(model, &sequence) != EPISODIC_OK ||
      episodic_sequence_attach(sequence, NULL, 0) != EPISODIC_OK ||
      episodic_sequence_read(sequence, text, length, show_progress, NULL, NULL) != EPISODIC_OK ||
      episodic_sequence_ask(sequence, argv[3], strlen(argv[3]), &options, show_text, NULL,
                            &answer) != EPISODIC_OK) {
    failed();
  } else {
    printf("\n");
    status = 0;
  }
  free(text);
  episodic_answer_free(answer); /* a null handle is nothing */
  episodic_sequence_free(sequence);
  episodic_model_free(model);
  return status;
}
