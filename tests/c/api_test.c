/* SPDX-License-Identifier: Apache-2.0 */
/* usage: api_test MODEL FOLDER: the C API from C99, call by call. FOLDER is empty, for kept memories. */
#include <episodic/c/episodic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks = 0;

#define CHECK(condition)                                                              \
  do {                                                                                \
    ++checks;                                                                         \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              episodic_last_error());                                                 \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)
#define OK(call) CHECK((call) == EPISODIC_OK)
#define FAILS(call, expected, part)                     \
  do {                                                  \
    CHECK((call) == (expected));                        \
    CHECK(strstr(episodic_last_error(), part) != NULL); \
  } while (0)

static const char* kFact = "The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora. ";
static const char* kQuestion = "\n\n\nWhat is the pass key of Nora?\n\nThe pass key of Nora is";

static char* some_text(void) {
  static const char* sentence = "The old man walked slowly to the river in the evening. ";
  char* text = malloc(160 * 60 + 200);
  int i;
  text[0] = '\0';
  for (i = 0; i < 150; ++i) {
    if (i == 40) strcat(text, kFact);
    strcat(text, sentence);
  }
  return text;
}

struct seen {
  int calls;
  char text[512];
};

static int32_t on_progress(int64_t done, int64_t total, void* user) {
  struct seen* seen = user;
  CHECK(done <= total);
  return ++seen->calls >= 1000;
}
static int32_t stop_at_once(int64_t done, int64_t total, void* user) {
  (void)done, (void)total, (void)user;
  return 1;
}
static int32_t on_token(int64_t id, const char* text, size_t length, void* user) {
  struct seen* seen = user;
  (void)id;
  ++seen->calls;
  strncat(seen->text, text, length);
  return 0;
}

struct nested {
  episodic_sequence sequence;
  int32_t code;
};
static int32_t asks_itself(int64_t done, int64_t total, void* user) {
  struct nested* nested = user;
  (void)done, (void)total;
  nested->code = episodic_sequence_commit(nested->sequence);
  return 0;
}

struct pieces {
  char text[3][512];
  size_t ends; /* this prompt's answer, with its first token */
};
static int32_t on_token_of(size_t prompt, int64_t id, const char* text, size_t length, void* user) {
  struct pieces* pieces = user;
  (void)id;
  CHECK(prompt < 3);
  strncat(pieces->text[prompt], text, length);
  return prompt == pieces->ends;
}

/* Answers of many at once are those of each alone, and a failure is one prompt's. */
static void test_many(episodic_model model, episodic_sequence a, episodic_sequence b) {
  episodic_prompt prompts[3];
  episodic_generate_options options;
  episodic_answer alone[2];
  struct pieces pieces;
  episodic_sequence_info before, after;
  char one[512], many[512];
  int64_t ids[3] = {5, 6, 7};
  int32_t finish = -1;
  int i;
  OK(episodic_generate_options_init(&options));
  options.max_new = 6;
  options.ignore_eos = 1;
  before.struct_size = after.struct_size = sizeof before;
  OK(episodic_sequence_get_info(a, &before));
  OK(episodic_sequence_ask(a, kQuestion, strlen(kQuestion), &options, NULL, NULL, &alone[0]));
  OK(episodic_sequence_ask(b, "The old", 7, &options, NULL, NULL, &alone[1]));
  memset(prompts, 0, sizeof prompts);
  memset(&pieces, 0, sizeof pieces);
  pieces.ends = 99;
  for (i = 0; i < 3; ++i) {
    prompts[i].struct_size = sizeof prompts[i];
    prompts[i].options = &options;
    prompts[i].asks = 1;
  }
  prompts[0].sequence = a;
  prompts[0].text = kQuestion;
  prompts[0].length = strlen(kQuestion);
  prompts[1].sequence = a; /* named already */
  prompts[1].ids = ids;
  prompts[1].n_ids = 3;
  prompts[2].sequence = b;
  prompts[2].text = "The old";
  prompts[2].length = 7;
  OK(episodic_generate_many(model, prompts, 3, on_token_of, &pieces));
  CHECK(prompts[0].code == EPISODIC_OK && prompts[0].message[0] == '\0');
  CHECK(prompts[1].code == EPISODIC_DATA && prompts[1].answer == NULL);
  CHECK(strstr(prompts[1].message, "prompt 0") != NULL);
  CHECK(prompts[2].code == EPISODIC_OK);
  for (i = 0; i < 2; ++i) {
    OK(episodic_answer_text(alone[i], one, sizeof one, NULL));
    OK(episodic_answer_text(prompts[2 * i].answer, many, sizeof many, NULL));
    CHECK(strlen(one) > 0 && strcmp(one, many) == 0);
    CHECK(strcmp(one, pieces.text[2 * i]) == 0);
    OK(episodic_answer_free(alone[i]));
    OK(episodic_answer_free(prompts[2 * i].answer));
  }
  OK(episodic_sequence_get_info(a, &after));
  CHECK(after.tokens == before.tokens && after.events == before.events);
  /* a callback ends one answer alone; ids; a null handle; texts and ids together */
  memset(&pieces, 0, sizeof pieces);
  pieces.ends = 2;
  prompts[0].sequence = NULL;
  prompts[1].asks = 0;
  OK(episodic_generate_many(model, prompts, 3, on_token_of, &pieces));
  CHECK(prompts[0].code == EPISODIC_BAD_HANDLE && prompts[0].answer == NULL);
  CHECK(prompts[1].code == EPISODIC_OK && prompts[2].code == EPISODIC_OK);
  OK(episodic_answer_finish(prompts[1].answer, &finish));
  CHECK(finish == EPISODIC_FINISH_LENGTH);
  OK(episodic_answer_finish(prompts[2].answer, &finish));
  CHECK(finish == EPISODIC_FINISH_CANCELLED);
  OK(episodic_answer_free(prompts[1].answer));
  OK(episodic_answer_free(prompts[2].answer));
  OK(episodic_sequence_get_info(a, &after));
  CHECK(after.tokens == before.tokens + 3 + options.max_new);
  prompts[2].ids = ids;
  OK(episodic_generate_many(model, prompts + 2, 1, NULL, NULL));
  CHECK(prompts[2].code == EPISODIC_CONFIG && strstr(prompts[2].message, "one of them"));
  OK(episodic_generate_many(model, NULL, 0, NULL, NULL));
  FAILS(episodic_generate_many(model, NULL, 2, NULL, NULL), EPISODIC_NULL_ARGUMENT, "prompts");
  FAILS(episodic_generate_many(NULL, prompts, 1, NULL, NULL), EPISODIC_BAD_HANDLE, "model");
  prompts[2].struct_size = 5;
  FAILS(episodic_generate_many(model, prompts + 2, 1, NULL, NULL), EPISODIC_CONFIG, "struct_size");
}

/* A choice of the device; this test is of builds with CUDA and without, with a device and without. */
static void test_device(const char* path) {
  episodic_load_options options;
  episodic_model model = NULL;
  episodic_sequence sequence;
  int32_t code;
  OK(episodic_load_options_init(&options));
  CHECK(options.struct_size == sizeof options && options.device == NULL);
  options.device = "cpu";
  OK(episodic_model_load(path, &options, &model));
  OK(episodic_model_free(model));
  model = NULL;
  options.device = "tpu";
  FAILS(episodic_model_load(path, &options, &model), EPISODIC_CONFIG, "must be cpu or cuda");
  options.struct_size = 8;
  FAILS(episodic_model_load(path, &options, &model), EPISODIC_CONFIG, "struct_size");
  options.struct_size = sizeof options;
  options.device = "cuda";
  code = episodic_model_load(path, &options, &model);
  if (code == EPISODIC_OK) {
    OK(episodic_sequence_new(model, &sequence));
    FAILS(episodic_sequence_attach(sequence, NULL, 0), EPISODIC_CONFIG, "max_tokens");
    OK(episodic_sequence_attach(sequence, NULL, 1000));
    OK(episodic_sequence_read(sequence, "The old man", 11, NULL, NULL, NULL));
    OK(episodic_sequence_free(sequence));
    OK(episodic_model_free(model));
  } else {
    CHECK(code == EPISODIC_NOT_BUILT || code == EPISODIC_DEVICE);
    CHECK(strlen(episodic_last_error()) > 0 && strchr(episodic_last_error(), '\n') == NULL);
    CHECK(model == NULL);
  }
}

static void test_errors(void) {
  episodic_model model = NULL;
  CHECK(episodic_api_version() >= EPISODIC_API_VERSION);
  CHECK(strlen(episodic_version()) > 0);
  CHECK(strcmp(episodic_code_name(EPISODIC_OK), "ok") == 0);
  CHECK(strcmp(episodic_code_name(EPISODIC_CONFIG), "config") == 0);
  CHECK(strcmp(episodic_code_name(EPISODIC_BUSY), "busy") == 0);
  CHECK(strcmp(episodic_code_name(-7), "?") == 0);
  FAILS(episodic_model_load("no/such/model", NULL, &model), EPISODIC_FILE, "no/such/model");
  CHECK(model == NULL);
  FAILS(episodic_model_load(NULL, NULL, &model), EPISODIC_NULL_ARGUMENT, "path");
  FAILS(episodic_model_load("x", NULL, NULL), EPISODIC_NULL_ARGUMENT, "model");
  FAILS(episodic_sequence_new(NULL, NULL), EPISODIC_NULL_ARGUMENT, "sequence");
  FAILS(episodic_sequence_commit(NULL), EPISODIC_BAD_HANDLE, "null");
  FAILS(episodic_sequence_commit((episodic_sequence)(uintptr_t)12345), EPISODIC_BAD_HANDLE, "freed");
  OK(episodic_model_free(NULL));
  OK(episodic_answer_free(NULL));
}

static void test_engine(const char* path, const char* folder) {
  episodic_model model;
  episodic_model_info info = {sizeof info, 0, 0, 0, 0, 0, 0, 0, 0};
  episodic_sequence sequence, fork;
  episodic_sequence_info state = {sizeof state, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  episodic_generate_options options;
  episodic_snapshot snapshot;
  episodic_answer answer, again;
  episodic_range events[4];
  struct seen seen = {0, ""};
  struct nested nested;
  char buffer[512], name[1024];
  char* text = some_text();
  int64_t ids[64], read = 0;
  size_t n = 0, length = 0;
  int32_t finish = -1;
  float* logits;

  OK(episodic_model_load(path, NULL, &model));
  OK(episodic_model_get_info(model, &info));
  CHECK(info.vocab_size > 0 && info.n_heads > 0 && info.has_tokenizer == 1);
  OK(episodic_model_encode(model, "Nora", 4, 0, NULL, 0, &n));
  CHECK(n > 0 && n < 64);
  OK(episodic_model_encode(model, "Nora", 4, 0, ids, 64, &n));
  FAILS(episodic_model_encode(model, "Nora", 4, 0, ids, 0, &n), EPISODIC_TOO_SMALL, "room");
  OK(episodic_model_decode(model, ids, n, buffer, sizeof buffer, &length));
  CHECK(strcmp(buffer, "Nora") == 0 && length == 4);
  FAILS(episodic_model_decode(model, ids, n, buffer, 4, &length), EPISODIC_TOO_SMALL, "takes 5");

  OK(episodic_sequence_new(model, &sequence));
  FAILS(episodic_sequence_attach(sequence, "{\"no_such\": 1}", 0), EPISODIC_CONFIG, "no_such");
  OK(episodic_sequence_attach(sequence, "{\"n_local\": 128}", 0));
  OK(episodic_sequence_read(sequence, text, strlen(text), on_progress, &seen, &read));
  CHECK(read > 1000 && seen.calls > 1);
  OK(episodic_sequence_get_info(sequence, &state));
  CHECK(state.tokens == read && state.events > 10 && state.has_memory && !state.kept);
  OK(episodic_sequence_events(sequence, 0, NULL, 0, &n));
  CHECK((int64_t)n == state.events);
  OK(episodic_sequence_events(sequence, 2, events, 4, &n));
  CHECK(n == 4 && events[0].end == events[1].start);
  FAILS(episodic_sequence_events(sequence, -1, events, 4, &n), EPISODIC_DATA, "first");

  OK(episodic_generate_options_init(&options));
  options.max_new = 8;
  seen.calls = 0;
  OK(episodic_sequence_ask(sequence, kQuestion, strlen(kQuestion), &options, on_token, &seen, &answer));
  OK(episodic_answer_reasoning(answer, buffer, sizeof buffer, &length));
  CHECK(length == 0); /* the model has no marks for what it thinks */
  OK(episodic_answer_text(answer, buffer, sizeof buffer, &length));
  CHECK(strstr(buffer, "52871") != NULL && strcmp(buffer, seen.text) == 0);
  OK(episodic_answer_ids(answer, ids, 64, &n));
  CHECK(n > 0 && n <= 8);
  OK(episodic_answer_finish(answer, &finish));
  CHECK(finish == EPISODIC_FINISH_LENGTH || finish == EPISODIC_FINISH_STOP_TOKEN);
  OK(episodic_sequence_get_info(sequence, &state));
  CHECK(state.tokens == read); /* as it was */
  options.reread = 1;
  options.recall = 1;
  OK(episodic_sequence_ask(sequence, kQuestion, strlen(kQuestion), &options, NULL, NULL, &again));
  {
    episodic_recalled recalled[256];
    episodic_passage passages[4];
    double attention = 0;
    OK(episodic_answer_recalled(again, NULL, 0, &n));
    CHECK(n > 0 && n <= 256);
    OK(episodic_answer_recalled(again, recalled, 256, &n));
    for (length = 0; length < n; ++length) attention += recalled[length].attention;
    CHECK(attention > 0.99 && attention < 1.01 && recalled[0].rank >= 1);
    OK(episodic_answer_passages(again, passages, 4, &n));
    CHECK(n == 1 && passages[0].score > 0 && passages[0].score <= 1);
    {
      episodic_range place;
      char passage[2048];
      place.start = passages[0].start;
      place.end = passages[0].end;
      OK(episodic_sequence_text(sequence, place, passage, sizeof passage, &length));
      CHECK(strstr(passage, "52871") != NULL);
      place.end = 1 << 30;
      FAILS(episodic_sequence_text(sequence, place, passage, sizeof passage, NULL), EPISODIC_DATA, "within");
    }
  }
  options.recall = 0;
  OK(episodic_answer_free(again));
  options.rerank = 4;
  OK(episodic_sequence_ask(sequence, kQuestion, strlen(kQuestion), &options, NULL, NULL, &again));
  {
    episodic_passage best;
    OK(episodic_answer_passages(again, &best, 1, &n));
    CHECK(n == 1 && best.score == 1); /* of the likeliest question */
  }
  OK(episodic_answer_free(again));
  {
    episodic_answer none;
    int32_t only = 0;
    options.reread = EPISODIC_REREAD_ALONE;
    options.rerank = 0;
    OK(episodic_sequence_ask(sequence, kQuestion, strlen(kQuestion), &options, NULL, NULL, &none));
    OK(episodic_answer_passages_only(none, &only));
    OK(episodic_answer_passages(none, NULL, 0, &n));
    CHECK(only == 1 && n >= 1 && n <= 3);
    OK(episodic_answer_free(none));
    FAILS(episodic_sequence_generate(sequence, kQuestion, strlen(kQuestion), &options, NULL, NULL, &none),
          EPISODIC_CONFIG, "reread = -2");
    options.reread = -3;
    FAILS(episodic_sequence_ask(sequence, kQuestion, strlen(kQuestion), &options, NULL, NULL, &none),
          EPISODIC_CONFIG, "reread = -3");
    options.reread = 1;
    options.rerank = -1;
    FAILS(episodic_sequence_ask(sequence, kQuestion, strlen(kQuestion), &options, NULL, NULL, &none),
          EPISODIC_CONFIG, "rerank");
  }
  options.rerank = 0;
  options.reread = 0;
  FAILS(episodic_answer_text(again, buffer, sizeof buffer, NULL), EPISODIC_BAD_HANDLE, "freed");
  FAILS(episodic_answer_free(again), EPISODIC_BAD_HANDLE, "freed");
  FAILS(episodic_sequence_commit((episodic_sequence)(void*)answer), EPISODIC_BAD_HANDLE,
        "handle is that of a answer");
  OK(episodic_answer_free(answer));

  /* snapshots, forks and steps of many */
  OK(episodic_sequence_snapshot(sequence, &snapshot));
  OK(episodic_sequence_generate(sequence, kQuestion, strlen(kQuestion), &options, NULL, NULL, &answer));
  OK(episodic_sequence_get_info(sequence, &state));
  CHECK(state.tokens > read);
  OK(episodic_sequence_restore(sequence, snapshot));
  OK(episodic_snapshot_free(snapshot));
  OK(episodic_sequence_fork(sequence, &fork));
  logits = malloc(sizeof *logits * (size_t)info.vocab_size * 2);
  {
    episodic_step steps[4];
    memset(steps, 0, sizeof steps);
    for (n = 0; n < 4; ++n) {
      steps[n].struct_size = sizeof steps[n];
      steps[n].ids = ids;
      steps[n].n = 1;
      steps[n].logits = n < 2 ? logits + n * (size_t)info.vocab_size : NULL;
    }
    steps[0].sequence = sequence;
    steps[1].sequence = fork;
    steps[2].sequence = NULL;     /* none */
    steps[3].sequence = sequence; /* named already */
    OK(episodic_run(model, steps, 4));
    CHECK(steps[0].code == EPISODIC_OK && steps[1].code == EPISODIC_OK);
    CHECK(steps[2].code == EPISODIC_BAD_HANDLE && strlen(steps[2].message) > 0);
    CHECK(steps[3].code == EPISODIC_DATA && strlen(steps[3].message) > 0);
    CHECK(memcmp(logits, logits + info.vocab_size, sizeof *logits * (size_t)info.vocab_size) == 0);
    OK(episodic_sequence_logits(sequence, logits + info.vocab_size, (size_t)info.vocab_size, &n));
    CHECK((int64_t)n == info.vocab_size);
    CHECK(memcmp(logits, logits + info.vocab_size, sizeof *logits * (size_t)info.vocab_size) == 0);
    FAILS(episodic_run(model, NULL, 2), EPISODIC_NULL_ARGUMENT, "steps");
    { /* a caller of a later version, whose struct has grown */
      struct {
        episodic_step step;
        int64_t more[3];
      } later[2];
      memset(later, 0, sizeof later);
      for (n = 0; n < 2; ++n) {
        later[n].step.struct_size = sizeof later[n];
        later[n].step.sequence = n == 0 ? sequence : fork;
        later[n].step.ids = ids;
        later[n].step.n = 1;
        later[n].more[0] = 7;
      }
      OK(episodic_run(model, &later[0].step, 2));
      CHECK(later[0].step.code == EPISODIC_OK && later[1].step.code == EPISODIC_OK);
      CHECK(later[0].more[0] == 7 && later[1].more[0] == 7);
      later[1].step.struct_size = sizeof(episodic_step);
      FAILS(episodic_run(model, &later[0].step, 2), EPISODIC_CONFIG, "all must be");
    }
    steps[0].struct_size = 3;
    FAILS(episodic_run(model, steps, 1), EPISODIC_CONFIG, "struct_size");
    /* sizes that no version has: elements would not be aligned, or it was never set */
    steps[0].struct_size = sizeof(episodic_step) + 1;
    FAILS(episodic_run(model, steps, 1), EPISODIC_CONFIG, "struct_size");
    steps[0].struct_size = (size_t)-8;
    FAILS(episodic_run(model, steps, 1), EPISODIC_CONFIG, "struct_size");
    steps[0].struct_size = sizeof(episodic_step);
    FAILS(episodic_run(model, steps, (size_t)-1), EPISODIC_DATA, "negative");
    steps[0].n = (size_t)-1;
    OK(episodic_run(model, steps, 1));
    CHECK(steps[0].code == EPISODIC_DATA && strstr(steps[0].message, "negative"));
  }
  test_many(model, sequence, fork);
  free(logits);
  OK(episodic_sequence_free(fork));
  OK(episodic_answer_free(answer));

  /* wrong input leaves the sequence as it is */
  ids[0] = -5;
  FAILS(episodic_sequence_read_ids(sequence, ids, 1, NULL, NULL, NULL), EPISODIC_DATA, "-5");
  FAILS(episodic_sequence_read_ids(sequence, ids, (size_t)-1, NULL, NULL, NULL), EPISODIC_DATA,
        "negative");
  FAILS(episodic_sequence_read(sequence, "a", (size_t)-1, NULL, NULL, NULL), EPISODIC_DATA,
        "negative");
  FAILS(episodic_sequence_text(sequence, (episodic_range){0, 1}, buffer, (size_t)-1, NULL),
        EPISODIC_DATA, "negative");
  FAILS(episodic_sequence_events(sequence, 0, events, (size_t)-1, &n), EPISODIC_DATA, "negative");
  options.temperature = -1;
  FAILS(episodic_sequence_ask(sequence, "a", 1, &options, NULL, NULL, &answer), EPISODIC_CONFIG,
        "temperature");
  options.temperature = 0;
  options.struct_size = 2;
  FAILS(episodic_sequence_ask(sequence, "a", 1, &options, NULL, NULL, &answer), EPISODIC_CONFIG,
        "struct_size");
  FAILS(episodic_sequence_ask(sequence, "", 0, NULL, NULL, NULL, &answer), EPISODIC_DATA, "");
  options.struct_size = sizeof options;
  options.chat = 1;
  FAILS(episodic_sequence_generate_ids(sequence, ids, 1, &options, NULL, NULL, &answer),
        EPISODIC_CONFIG, "chat");
  nested.sequence = sequence;
  nested.code = 0;
  OK(episodic_sequence_read(sequence, text, 400, asks_itself, &nested, NULL));
  CHECK(nested.code == EPISODIC_BUSY);
  OK(episodic_sequence_read(sequence, text, strlen(text), stop_at_once, NULL, &read));
  CHECK(read < 1000);
  OK(episodic_sequence_free(sequence));

  /* kept in a folder */
  snprintf(name, sizeof name, "%s/book.mem", folder);
  OK(episodic_sequence_new(model, &sequence));
  FAILS(episodic_sequence_open(sequence, name, 0, NULL, 0), EPISODIC_FILE, "book.mem");
  OK(episodic_sequence_open(sequence, name, 1, NULL, 0));
  OK(episodic_sequence_read(sequence, text, strlen(text), NULL, NULL, &read));
  OK(episodic_sequence_commit(sequence));
  OK(episodic_sequence_free(sequence));
  OK(episodic_folder_verify(name, &n, buffer, sizeof buffer, &length));
  CHECK(n == 0 && length == 0 && buffer[0] == '\0');
  {
    char other[1100];
    snprintf(other, sizeof other, "%s/other.mem", folder);
    OK(episodic_folder_fork(name, other));
    FAILS(episodic_folder_fork(name, other), EPISODIC_FILE, "other.mem");
    OK(episodic_sequence_new(model, &sequence));
    FAILS(episodic_sequence_open(sequence, other, 0, "{}", 0), EPISODIC_CONFIG, "settings");
    OK(episodic_sequence_open(sequence, other, 1, NULL, 0));
  }
  OK(episodic_sequence_get_info(sequence, &state));
  CHECK(state.tokens == read && state.kept && state.disk_bytes > 0);
  options.chat = 0;
  options.max_new = 8;
  OK(episodic_sequence_ask(sequence, kQuestion, strlen(kQuestion), &options, NULL, NULL, &answer));
  OK(episodic_answer_text(answer, buffer, sizeof buffer, NULL));
  CHECK(strstr(buffer, "52871") != NULL);
  OK(episodic_answer_free(answer));
  OK(episodic_sequence_events(sequence, 0, events, 1, &n));
  OK(episodic_sequence_pin(sequence, 0, 1));
  FAILS(episodic_sequence_forget(sequence, events[0], &n), EPISODIC_DATA, "pinned");
  { /* no such length can be computed */
    const episodic_range all = {INT64_MAX, INT64_MIN + 1}, none = {INT64_MIN, INT64_MAX};
    FAILS(episodic_sequence_forget(sequence, all, &n), EPISODIC_DATA, "forget");
    FAILS(episodic_sequence_forget(sequence, none, &n), EPISODIC_DATA, "forget");
  }
  OK(episodic_sequence_pin(sequence, 0, 0));
  OK(episodic_sequence_forget(sequence, events[0], &n));
  CHECK(n == 1);
  OK(episodic_sequence_rewind(sequence, read));
  OK(episodic_model_free(model)); /* its sequences go on */
  OK(episodic_sequence_get_info(sequence, &state));
  OK(episodic_sequence_free(sequence));
  free(text);
}

/* Draws that are the same everywhere. */
static float draw(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static void test_memory(const char* folder) {
  enum { kTokens = 8, kHeads = 4, kKv = 2, kDim = 8, kLayers = 2 };
  episodic_shape shape;
  episodic_memory memory, fork;
  episodic_memory_info info = {sizeof info, 0, 0, 0, 0, 0, 0};
  episodic_snapshot snapshot = NULL;
  episodic_view q, k, v, out;
  float qkv[kTokens * (kHeads + 2 * kKv) * kDim], result[kTokens * kHeads * kDim], surprise[kTokens];
  float first[kTokens * kHeads * kDim];
  const char* settings =
      "{\"n_init\": 4, \"n_local\": 16, \"n_mem\": 16, \"chunk\": 8, \"min_block\": 2, \"max_block\": 8}";
  uint32_t state = 7;
  int64_t recalled[64];
  char name[1024];
  size_t n = 0;
  int step, layer, i;
  memset(&shape, 0, sizeof shape);
  shape.struct_size = sizeof shape;
  shape.n_layers = kLayers;
  shape.n_heads = kHeads;
  shape.n_kv_heads = kKv;
  shape.head_dim = kDim;
  shape.rotary_dim = kDim;
  shape.rotary_theta = 10000;
  FAILS(episodic_memory_new("{\"n_local\": 0}", &shape, &memory), EPISODIC_CONFIG, "n_local");
  FAILS(episodic_memory_new(settings, NULL, &memory), EPISODIC_NULL_ARGUMENT, "shape");
  shape.rotary_dim = 7;
  FAILS(episodic_memory_new(settings, &shape, &memory), EPISODIC_CONFIG, "rotary_dim");
  shape.head_dim = shape.rotary_dim = INT64_MAX - 1; /* frequencies for all of them */
  FAILS(episodic_memory_new(settings, &shape, &memory), EPISODIC_CONFIG, "head_dim");
  shape.head_dim = kDim;
  shape.struct_size = (size_t)-1;
  FAILS(episodic_memory_new(settings, &shape, &memory), EPISODIC_CONFIG, "struct_size");
  shape.struct_size = sizeof shape;
  shape.rotary_dim = kDim;
  shape.n_layers = -1;
  FAILS(episodic_memory_new(settings, &shape, &memory), EPISODIC_CONFIG, "n_layers");
  shape.n_layers = kLayers;
  OK(episodic_memory_new(settings, &shape, &memory));

  /* a fused projection: q, k and v of a token side by side */
  memset(&q, 0, sizeof q);
  q.struct_size = sizeof q;
  q.data = qkv;
  q.n = kTokens;
  q.heads = kHeads;
  q.dim = kDim;
  q.row_stride = (kHeads + 2 * kKv) * kDim;
  q.head_stride = kDim;
  k = q;
  k.data = qkv + kHeads * kDim;
  k.heads = kKv;
  v = k;
  v.data = qkv + (kHeads + kKv) * kDim;
  memset(&out, 0, sizeof out);
  out.struct_size = sizeof out;
  out.data = result;
  out.n = kTokens;
  out.heads = kHeads;
  out.dim = kDim; /* packed */
  for (step = 0; step < 20; ++step) {
    OK(episodic_memory_begin_step(memory, kTokens, 0));
    for (layer = 0; layer < kLayers; ++layer) {
      for (i = 0; i < (int)(sizeof qkv / sizeof *qkv); ++i) qkv[i] = draw(&state);
      OK(episodic_memory_attend(memory, layer, &q, &k, &v, &out));
      for (i = 0; i < kTokens * kHeads * kDim; ++i) CHECK(isfinite(result[i]));
    }
    for (i = 0; i < kTokens; ++i) surprise[i] = 2.0f + draw(&state);
    OK(episodic_memory_end_step(memory, surprise, kTokens));
  }
  OK(episodic_memory_get_info(memory, &info));
  CHECK(info.tokens == 20 * kTokens && info.events > 5 && info.lanes == kLayers && !info.kept);
  OK(episodic_memory_recalled(memory, 0, recalled, 64, &n));
  CHECK(n > 0);
  FAILS(episodic_memory_recalled(memory, 99, recalled, 64, &n), EPISODIC_DATA, "");

  /* a fork and a way back give the same bits */
  OK(episodic_memory_fork(memory, &fork));
  OK(episodic_memory_snapshot(memory, &snapshot));
  for (i = 0; i < (int)(sizeof qkv / sizeof *qkv); ++i) qkv[i] = draw(&state);
  for (step = 0; step < 3; ++step) {
    episodic_memory of = step == 1 ? fork : memory;
    if (step == 2) OK(episodic_memory_restore(memory, snapshot));
    OK(episodic_memory_begin_step(of, kTokens, 0));
    OK(episodic_memory_attend(of, 0, &q, &k, &v, &out));
    if (step == 0) memcpy(first, result, sizeof first);
    CHECK(memcmp(first, result, sizeof first) == 0);
    OK(episodic_memory_attend(of, 1, &q, &k, &v, &out));
    OK(episodic_memory_end_step(of, surprise, kTokens));
  }
  FAILS(episodic_memory_restore(fork, snapshot), EPISODIC_CONFIG, "");
  OK(episodic_snapshot_free(snapshot));

  /* bad views and steps */
  FAILS(episodic_memory_end_step(memory, surprise, kTokens), EPISODIC_DATA, "");
  OK(episodic_memory_begin_step(memory, kTokens, 0));
  q.dtype = 9;
  FAILS(episodic_memory_attend(memory, 0, &q, &k, &v, &out), EPISODIC_DATA, "q");
  q.dtype = EPISODIC_FLOAT32;
  q.row_stride = -1;
  FAILS(episodic_memory_attend(memory, 0, &q, &k, &v, &out), EPISODIC_DATA, "q");
  q.row_stride = (kHeads + 2 * kKv) * kDim;
  k.data = NULL;
  FAILS(episodic_memory_attend(memory, 0, &q, &k, &v, &out), EPISODIC_DATA, "k");
  FAILS(episodic_memory_attend(memory, 0, NULL, &k, &v, &out), EPISODIC_NULL_ARGUMENT, "q");
  k.data = (char*)(qkv + kHeads * kDim) + 1;
  FAILS(episodic_memory_attend(memory, 0, &q, &k, &v, &out), EPISODIC_DATA, "k: the address");
  k.data = qkv + kHeads * kDim;
  k.row_stride = INT64_MAX / 4;
  FAILS(episodic_memory_attend(memory, 0, &q, &k, &v, &out), EPISODIC_DATA, "beyond all memory");
  k.row_stride = k.head_stride = 0; /* packed rows, whose size is a product */
  k.heads = k.dim = INT64_MAX / 2;
  FAILS(episodic_memory_attend(memory, 0, &q, &k, &v, &out), EPISODIC_DATA, "k");
  FAILS(episodic_memory_end_step(memory, surprise, (size_t)-1), EPISODIC_DATA, "negative");
  FAILS(episodic_memory_end_step_logits(memory, recalled, kTokens, surprise, 1, INT64_MAX / 4),
        EPISODIC_DATA, "beyond all memory");
  FAILS(episodic_memory_begin_step(memory, 1000, 0), EPISODIC_DATA, "1000");
  FAILS(episodic_memory_end_step_logits(memory, recalled, 3, surprise, 1, 1), EPISODIC_DATA, "3");
  FAILS(episodic_memory_commit(memory), EPISODIC_CONFIG, "commit");
  OK(episodic_memory_reset(memory));
  OK(episodic_memory_free(fork));
  OK(episodic_memory_free(memory));

  snprintf(name, sizeof name, "%s/own.mem", folder);
  OK(episodic_memory_create(name, settings, &shape, &memory));
  OK(episodic_memory_commit(memory));
  OK(episodic_memory_free(memory));
  shape.n_heads = 2 * kHeads;
  FAILS(episodic_memory_open(name, 0, &shape, &memory), EPISODIC_CONFIG, "");
  shape.n_heads = kHeads;
  OK(episodic_memory_open(name, 1, &shape, &memory));
  OK(episodic_memory_get_info(memory, &info));
  CHECK(info.kept && info.tokens == 0);
  OK(episodic_memory_free(memory));
}

/* One step of all layers of a memory that stands for a model's. */
static void step_of_layers(episodic_memory memory, int layers, uint32_t* state, float* result) {
  enum { kTokens = 8, kHeads = 4, kKv = 2, kDim = 8, kWords = 11 };
  episodic_view q, k, v, out;
  float rows[kTokens * (kHeads + 2 * kKv) * kDim], surprise[kTokens], logits[kWords];
  int64_t ids[kTokens];
  int layer, i;
  memset(&q, 0, sizeof q);
  q.struct_size = sizeof q;
  q.data = rows;
  q.n = kTokens;
  q.heads = kHeads;
  q.dim = kDim;
  k = q;
  k.heads = kKv;
  k.data = rows + kTokens * kHeads * kDim;
  v = k;
  v.data = rows + kTokens * (kHeads + kKv) * kDim;
  out = q;
  out.data = result;
  OK(episodic_memory_begin_step(memory, kTokens, 0));
  for (layer = 0; layer < layers; ++layer) {
    for (i = 0; i < (int)(sizeof rows / sizeof *rows); ++i) rows[i] = draw(state);
    if (layer == 1) {
      FAILS(episodic_memory_attend(memory, 0, &q, &k, &v, &out), EPISODIC_DATA, "layer 1 comes next");
      FAILS(episodic_memory_attend(memory, layers, &q, &k, &v, &out), EPISODIC_DATA, "layer");
      FAILS(episodic_memory_end_step(memory, surprise, kTokens), EPISODIC_DATA, "has not attended");
      k.rotated = 1; /* the second layer has a window */
      FAILS(episodic_memory_attend(memory, 1, &q, &k, &v, &out), EPISODIC_DATA, "k comes after");
      k.rotated = 0;
      v.data = NULL;
      FAILS(episodic_memory_attend(memory, 1, &q, &k, &v, &out), EPISODIC_DATA, "v is null");
      v.data = rows + kTokens * (kHeads + kKv) * kDim;
      out.dim = 3;
      FAILS(episodic_memory_attend(memory, 1, &q, &k, &v, &out), EPISODIC_DATA, "out is");
      out.dim = kDim;
    }
    OK(episodic_memory_attend(memory, layer, &q, &k, &v, &out));
  }
  for (i = 0; i < kTokens; ++i) {
    surprise[i] = 2.0f + draw(state);
    ids[i] = i;
  }
  for (i = 0; i < kWords; ++i) logits[i] = draw(state);
  FAILS(episodic_memory_end_step_ids(memory, ids, 3, surprise, logits, kWords), EPISODIC_DATA, "3");
  FAILS(episodic_memory_end_step_ids(memory, NULL, kTokens, surprise, logits, kWords),
        EPISODIC_NULL_ARGUMENT, "ids");
  FAILS(episodic_memory_end_step_ids(memory, ids, kTokens, surprise, NULL, kWords),
        EPISODIC_NULL_ARGUMENT, "last_logits");
  OK(episodic_memory_end_step_ids(memory, ids, kTokens, surprise, logits, kWords));
}

/* What comes of one that is right depends on the build and the machine (device_memory_test.cpp). */
static void test_device_memory(void) {
  episodic_device_options options;
  episodic_shape shape;
  episodic_memory memory;
  int32_t code;
  memset(&shape, 0, sizeof shape);
  shape.struct_size = sizeof shape;
  shape.n_layers = shape.n_kv_heads = 1;
  shape.n_heads = 2;
  shape.head_dim = 16;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.max_tokens = 100;
  FAILS(episodic_memory_on_device(NULL, &memory), EPISODIC_NULL_ARGUMENT, "options");
  FAILS(episodic_memory_on_device(&options, NULL), EPISODIC_NULL_ARGUMENT, "memory");
  FAILS(episodic_memory_on_device(&options, &memory), EPISODIC_NULL_ARGUMENT, "shape");
  options.shape = &shape;
  options.dtype = 3;
  FAILS(episodic_memory_on_device(&options, &memory), EPISODIC_DATA, "dtype");
  options.dtype = EPISODIC_FLOAT16;
  code = episodic_memory_on_device(&options, &memory);
  CHECK(code == EPISODIC_OK || code == EPISODIC_NOT_BUILT || code == EPISODIC_DEVICE);
  if (code == EPISODIC_OK) OK(episodic_memory_free(memory));
  OK(episodic_memory_new(NULL, &shape, &memory));
  FAILS(episodic_memory_use_stream(memory, NULL), EPISODIC_CONFIG, "use_stream");
  OK(episodic_memory_free(memory));
}

static void test_layers(const char* model, const char* folder) {
  enum { kLayers = 3, kRow = 8 * 4 * 8 };
  const char* settings =
      "{\"n_init\": 4, \"n_local\": 16, \"n_mem\": 16, \"chunk\": 8, \"min_block\": 2, \"max_block\": 8}";
  episodic_layer layers[kLayers];
  episodic_memory_options options;
  episodic_memory_info info = {sizeof info, 0, 0, 0, 0, 0, 0};
  episodic_shape shape;
  episodic_memory memory, other;
  episodic_snapshot snapshot;
  episodic_range all = {0, 80}, beyond = {0, 81};
  float result[kRow], first[kRow];
  int64_t ids[80];
  uint32_t state = 7, before;
  char name[1024];
  size_t n = 0;
  int i;
  memset(&shape, 0, sizeof shape);
  shape.struct_size = sizeof shape;
  shape.n_layers = kLayers;
  shape.n_heads = 4;
  shape.n_kv_heads = 2;
  shape.head_dim = 8;
  memset(layers, 0, sizeof layers);
  for (i = 0; i < kLayers; ++i) {
    layers[i].struct_size = sizeof *layers;
    layers[i].rotary_dim = i == 2 ? 0 : 8; /* the last one rotates nothing */
    layers[i].rotary_theta = i == 1 ? 100 : 10000;
    layers[i].window = i == 1 ? 12 : 0;
    layers[i].scale = 0.2f;
  }
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_NULL_ARGUMENT, "shape");
  FAILS(episodic_memory_make(NULL, &memory), EPISODIC_NULL_ARGUMENT, "options");
  FAILS(episodic_memory_make(&options, NULL), EPISODIC_NULL_ARGUMENT, "memory");
  options.settings = settings;
  options.shape = &shape;
  options.layers = layers;
  layers[1].struct_size = 3;
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "struct_size");
  layers[1].struct_size = sizeof *layers;
  layers[1].window = -1;
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "window");
  layers[1].window = 12;
  layers[1].rotary_dim = 9;
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "rotary_dim");
  layers[1].rotary_dim = 8;
  shape.n_kv_heads = 3;
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "n_kv_heads");
  shape.n_kv_heads = 2;
  layers[0].window = layers[2].window = 12; /* all slide: the memory serves them, and must look no further */
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "window of 12");
  layers[0].window = layers[2].window = 0;

  snprintf(name, sizeof name, "%s/layers.mem", folder);
  options.folder = name;
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "give NULL"); /* to be read, with settings */
  options.writes = 1;
  OK(episodic_memory_make(&options, &memory));
  for (i = 0; i < 10; ++i) step_of_layers(memory, kLayers, &state, result);
  OK(episodic_memory_get_info(memory, &info));
  CHECK(info.tokens == 80 && info.events > 5 && info.lanes == 2 && info.kept);
  OK(episodic_memory_commit(memory));
  OK(episodic_memory_ids(memory, all, ids, 80, &n));
  CHECK(n == 80 && ids[0] == 0 && ids[79] == 7);
  FAILS(episodic_memory_ids(memory, beyond, ids, 80, &n), EPISODIC_DATA, "81");

  /* windows go back, go on and are kept with it: the same bits each time */
  OK(episodic_memory_snapshot(memory, &snapshot));
  before = state;
  step_of_layers(memory, kLayers, &state, first);
  OK(episodic_memory_restore(memory, snapshot));
  state = before;
  step_of_layers(memory, kLayers, &state, result);
  CHECK(memcmp(first, result, sizeof first) == 0);
  OK(episodic_memory_begin_step(memory, 8, 0));
  OK(episodic_memory_abandon_step(memory));
  OK(episodic_memory_free(memory));
  options.settings = NULL;
  options.writes = 0;
  layers[1].rotary_theta = 101; /* a window's table is no part of the memory's shape */
  layers[0].rotary_theta = 9999;
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "rotary base");
  layers[0].rotary_theta = 10000;
  layers[1].rotary_theta = 100;
  OK(episodic_memory_make(&options, &memory));
  FAILS(episodic_memory_restore(memory, snapshot), EPISODIC_CONFIG, "restore");
  OK(episodic_snapshot_free(snapshot));
  OK(episodic_memory_fork(memory, &other));
  for (i = 0; i < 2; ++i) {
    state = before;
    step_of_layers(i == 0 ? other : memory, kLayers, &state, result);
    CHECK(memcmp(first, result, sizeof first) == 0);
  }
  OK(episodic_memory_reset(other));
  OK(episodic_memory_free(other));
  OK(episodic_memory_free(memory));

  /* of a model: its own shape, and no other */
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.model = model;
  OK(episodic_memory_make(&options, &memory));
  OK(episodic_memory_get_info(memory, &info));
  CHECK(info.tokens == 0 && info.lanes > 0);
  OK(episodic_memory_free(memory));
  options.shape = &shape;
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "is not the model");
  options.shape = NULL;
  options.model = "no/such/model";
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_FILE, "no/such/model");
  options.model = model;
  options.folder = name; /* which is of no model, and of another shape */
  FAILS(episodic_memory_make(&options, &memory), EPISODIC_CONFIG, "another model");
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  test_errors();
  test_memory(argv[2]);
  test_device_memory();
  test_layers(argv[1], argv[2]);
  test_device(argv[1]);
  test_engine(argv[1], argv[2]);
  printf("%d checks\n", checks);
  return 0;
}
