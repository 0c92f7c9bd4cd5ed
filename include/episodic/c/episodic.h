/* SPDX-License-Identifier: Apache-2.0 */
/* The C API of episodic: flat functions over opaque handles, in C99. Nothing of C++ crosses it.
 *
 *     episodic_model model;
 *     episodic_sequence book;
 *     episodic_answer answer;
 *     if (episodic_model_load("model.gguf", NULL, &model) != EPISODIC_OK) {
 *       fprintf(stderr, "%s\n", episodic_last_error());
 *       return 1;
 *     }
 *     episodic_sequence_new(model, &book);
 *     episodic_sequence_attach(book, NULL, 0);
 *     episodic_sequence_read(book, text, strlen(text), NULL, NULL, NULL);
 *     episodic_sequence_ask(book, question, strlen(question), NULL, NULL, NULL, &answer);
 *
 * Rules that hold for every function:
 *
 * - It returns EPISODIC_OK or another code of episodic_code; episodic_last_error then has one line,
 *   which names the argument, file or setting and the remedy. Outputs are written on success only.
 * - Handles are numbers in the clothes of pointers: one that was freed, or never given, is refused
 *   with EPISODIC_BAD_HANDLE and never read. Freeing a null handle does nothing.
 * - A handle is used by one thread at a time: a second one gets EPISODIC_BUSY. Models may be used by
 *   any number of threads.
 * - Parameter structs begin with struct_size, which the caller sets to sizeof. Fields that a newer
 *   library adds come at the end and have their defaults for older callers.
 * - Texts are UTF-8 with a length in bytes, or NUL-terminated where there is none. Texts and arrays
 *   are copied into the caller's memory, never lent. A call with a null buffer says how much room
 *   it takes; one with too little says EPISODIC_TOO_SMALL and how much.
 */
#ifndef EPISODIC_C_EPISODIC_H_
#define EPISODIC_C_EPISODIC_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EPISODIC_C_API __attribute__((visibility("default")))
#else
#define EPISODIC_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- versions and errors --------------------------------------------------------------------- */

/* Of this header. A library of the same number, or a larger one, serves it. */
#define EPISODIC_API_VERSION 5

/* EPISODIC_API_VERSION of the library. */
EPISODIC_C_API int32_t episodic_api_version(void);
/* The library's version, as "0.9.0". */
EPISODIC_C_API const char* episodic_version(void);

/* Numbers never change. */
typedef enum episodic_code {
  EPISODIC_OK = 0,
  EPISODIC_FAILED = 1,    /* a call at the wrong time, or a failure of no other kind */
  EPISODIC_CONFIG = 2,    /* a setting out of its range, unknown, or against another one */
  EPISODIC_FILE = 3,      /* a file missing, damaged or of another kind */
  EPISODIC_DISK_FULL = 4, /* the disk, or a disk budget, has no room; nothing was lost */
  EPISODIC_DATA = 5,      /* data of a wrong shape, type or value */
  EPISODIC_BUDGET = 6,    /* a byte budget cannot hold what is asked of it */
  EPISODIC_DEVICE = 7,    /* a CUDA device is missing or refused a call */
  EPISODIC_NOT_BUILT = 8, /* not in this build */
  EPISODIC_BAD_HANDLE = 100,    /* freed, never given, or of another kind */
  EPISODIC_BUSY = 101,          /* another thread, or a callback's caller, is using the handle */
  EPISODIC_TOO_SMALL = 102,     /* the caller's buffer */
  EPISODIC_NULL_ARGUMENT = 103, /* a pointer that must not be null */
  EPISODIC_NO_MEMORY = 104,     /* the system has none left */
  EPISODIC_INTERNAL = 105       /* an error of the library itself */
} episodic_code;

/* What the last failed call of this thread said; "" before one. Valid until the thread's next call. */
EPISODIC_C_API const char* episodic_last_error(void);
/* "config" for EPISODIC_CONFIG; "?" for a number that is none. */
EPISODIC_C_API const char* episodic_code_name(int32_t code);

/* ---- handles --------------------------------------------------------------------------------- */

typedef struct episodic_model_s* episodic_model;
typedef struct episodic_sequence_s* episodic_sequence;
typedef struct episodic_memory_s* episodic_memory;
typedef struct episodic_snapshot_s* episodic_snapshot;
typedef struct episodic_answer_s* episodic_answer;

/* Called with tokens done and tokens in all; another value than 0 stops the work there. */
typedef int32_t (*episodic_progress)(int64_t done, int64_t total, void* user);
/* Called with each token (-1 where there is text but no new token) and the text that became certain
 * with it, not NUL-terminated; another value than 0 ends the answer. */
typedef int32_t (*episodic_on_token)(int64_t id, const char* text, size_t length, void* user);

/* Tokens [start, end). */
typedef struct episodic_range {
  int64_t start, end;
} episodic_range;

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct episodic_model_info {
  size_t struct_size;
  int64_t vocab_size, n_layers, n_heads, n_kv_heads, head_dim;
  int64_t max_positions; /* that the model was trained for; 0: it does not say */
  int32_t has_tokenizer;
  int32_t has_chat_format;
} episodic_model_info;

/* Since version 2. */
typedef struct episodic_load_options {
  size_t struct_size;
  const char* device; /* "cpu", or "cuda" in builds with CUDA; NULL: "cpu" */
  int32_t device_number; /* of several CUDA devices; default 0 */
} episodic_load_options;
/* Sets struct_size and the defaults. Since version 2. */
EPISODIC_C_API int32_t episodic_load_options_init(episodic_load_options* options);

/* A Hugging Face directory or a GGUF file. options: may be NULL, and was always before version 2.
 * "cuda" is EPISODIC_NOT_BUILT in a build without CUDA, EPISODIC_DEVICE where there is none. */
EPISODIC_C_API int32_t episodic_model_load(const char* path, const episodic_load_options* options,
                                           episodic_model* model);
/* Sequences of it go on; they share it. */
EPISODIC_C_API int32_t episodic_model_free(episodic_model model);
EPISODIC_C_API int32_t episodic_model_get_info(episodic_model model, episodic_model_info* info);
/* special: with the tokens that begin a text. n is set to the number of ids, with a null buffer too. */
EPISODIC_C_API int32_t episodic_model_encode(episodic_model model, const char* text, size_t length,
                                             int32_t special, int64_t* ids, size_t capacity,
                                             size_t* n);
/* length is set to the text's bytes, without the NUL that ends it in the buffer. */
EPISODIC_C_API int32_t episodic_model_decode(episodic_model model, const int64_t* ids, size_t n,
                                             char* text, size_t capacity, size_t* length);

/* ---- sequences: a text in front of a model, with what its attention reads ---------------------- */

/* Empty, with full attention. */
EPISODIC_C_API int32_t episodic_sequence_new(episodic_model model, episodic_sequence* sequence);
EPISODIC_C_API int32_t episodic_sequence_free(episodic_sequence sequence);

/* An empty memory. settings: JSON that changes the model's own (docs/settings.md); NULL: nothing.
 * max_tokens: that the sequence may come to, for a device; 0 on the host. */
EPISODIC_C_API int32_t episodic_sequence_attach(episodic_sequence sequence, const char* settings,
                                                int64_t max_tokens);
EPISODIC_C_API int32_t episodic_sequence_attach_full_attention(episodic_sequence sequence,
                                                               int64_t max_tokens);
/* The memory kept in a folder. writes: it is made where there is none, and commits count; else it is
 * read only. settings: of a memory that is made. */
EPISODIC_C_API int32_t episodic_sequence_open(episodic_sequence sequence, const char* folder,
                                              int32_t writes, const char* settings,
                                              int64_t max_tokens);

typedef struct episodic_sequence_info {
  size_t struct_size;
  int64_t tokens, events;
  int64_t chunk;      /* most tokens of one step */
  int32_t has_memory; /* 0: full attention */
  int32_t kept;       /* in a folder */
  int64_t host_bytes, disk_bytes, index_bytes, window_bytes; /* of the memory; 0 without one */
} episodic_sequence_info;
EPISODIC_C_API int32_t episodic_sequence_get_info(episodic_sequence sequence,
                                                  episodic_sequence_info* info);

/* Reads a text of any length behind what was read. read: tokens, fewer if progress stopped it; may
 * be NULL. */
EPISODIC_C_API int32_t episodic_sequence_read(episodic_sequence sequence, const char* text,
                                              size_t length, episodic_progress progress, void* user,
                                              int64_t* read);
EPISODIC_C_API int32_t episodic_sequence_read_ids(episodic_sequence sequence, const int64_t* ids,
                                                  size_t n, episodic_progress progress, void* user,
                                                  int64_t* read);

/* Values of `reread` to ask with, in place of a number. Since version 5. */
enum {
  /* 3 passages of 32 tokens, which the model chooses of 8, and no memory beside them where the model is
   * sure of them; else 3 of 128 tokens behind the memory (docs/finding.md) */
  EPISODIC_REREAD_WHERE_SURE = -1,
  /* those 3 of 32 tokens, and never the memory, unless all that was read is in its window */
  EPISODIC_REREAD_ALONE = -2
};

typedef struct episodic_generate_options {
  size_t struct_size;
  int64_t max_new;    /* most tokens; default 128 */
  double temperature; /* default 0: greedy */
  double top_p;       /* default 1 */
  int64_t top_k;      /* default 0: all */
  double min_p;       /* default 0 */
  double repetition_penalty; /* default 1 */
  uint64_t seed;
  int32_t ignore_eos;
  int32_t chat;   /* the prompt is a message in the model's chat format; not with ids */
  int64_t reread; /* passages that are found for the prompt and read again before it, behind the memory;
                   * not with ids. Or EPISODIC_REREAD_... */
  const char* const* stop; /* texts that end the answer */
  size_t n_stop;
  int32_t recall; /* note what was recalled, for episodic_answer_recalled */
  int32_t rerank; /* candidates that the model reads to choose those of reread; default 0. Since
                   * version 3 */
} episodic_generate_options;
/* Sets struct_size and the defaults. */
EPISODIC_C_API int32_t episodic_generate_options_init(episodic_generate_options* options);

/* Continues: prompt and answer become part of the sequence. options, on_token: may be NULL. */
EPISODIC_C_API int32_t episodic_sequence_generate(episodic_sequence sequence, const char* prompt,
                                                  size_t length,
                                                  const episodic_generate_options* options,
                                                  episodic_on_token on_token, void* user,
                                                  episodic_answer* answer);
EPISODIC_C_API int32_t episodic_sequence_generate_ids(episodic_sequence sequence, const int64_t* ids,
                                                      size_t n,
                                                      const episodic_generate_options* options,
                                                      episodic_on_token on_token, void* user,
                                                      episodic_answer* answer);
/* Answers, and comes back: the sequence is then as it was. With full attention a copy of it is
 * asked. */
EPISODIC_C_API int32_t episodic_sequence_ask(episodic_sequence sequence, const char* question,
                                             size_t length,
                                             const episodic_generate_options* options,
                                             episodic_on_token on_token, void* user,
                                             episodic_answer* answer);

typedef enum episodic_finish {
  EPISODIC_FINISH_LENGTH = 0,
  EPISODIC_FINISH_STOP_TOKEN = 1,
  EPISODIC_FINISH_STOP_TEXT = 2,
  EPISODIC_FINISH_CANCELLED = 3
} episodic_finish;

EPISODIC_C_API int32_t episodic_answer_text(episodic_answer answer, char* text, size_t capacity,
                                            size_t* length);
/* What the model thought before it said that, in the chat format of a model that does; else empty.
 * Since version 3. */
EPISODIC_C_API int32_t episodic_answer_reasoning(episodic_answer answer, char* text, size_t capacity,
                                                 size_t* length);
EPISODIC_C_API int32_t episodic_answer_ids(episodic_answer answer, int64_t* ids, size_t capacity,
                                           size_t* n);
EPISODIC_C_API int32_t episodic_answer_finish(episodic_answer answer, int32_t* finish);
/* An event that the prompt and the answer recalled. */
typedef struct episodic_recalled {
  int64_t event, start, end; /* tokens [start, end) */
  int64_t rank;              /* its best in any layer; 1 is the best */
  double attention;          /* its share of what all recalled events received; 0: not known */
} episodic_recalled;
/* Best first; none without `recall` in the options. */
EPISODIC_C_API int32_t episodic_answer_recalled(episodic_answer answer, episodic_recalled* events,
                                                size_t capacity, size_t* n);
/* A passage that was read again. */
typedef struct episodic_passage {
  int64_t start, end; /* tokens [start, end) */
  double score;       /* in (0, 1] */
} episodic_passage;
EPISODIC_C_API int32_t episodic_answer_passages(episodic_answer answer, episodic_passage* passages,
                                                size_t capacity, size_t* n);
/* only: 1 where nothing but those passages was read before the prompt. Since version 5. */
EPISODIC_C_API int32_t episodic_answer_passages_only(episodic_answer answer, int32_t* only);
EPISODIC_C_API int32_t episodic_answer_free(episodic_answer answer);

/* A further sequence that goes on from here; what was read is there once. Not of a memory that is
 * kept and may be written. */
EPISODIC_C_API int32_t episodic_sequence_fork(episodic_sequence sequence, episodic_sequence* other);
EPISODIC_C_API int32_t episodic_sequence_snapshot(episodic_sequence sequence,
                                                  episodic_snapshot* snapshot);
/* Back to it, any number of times. */
EPISODIC_C_API int32_t episodic_sequence_restore(episodic_sequence sequence,
                                                 episodic_snapshot snapshot);
EPISODIC_C_API int32_t episodic_snapshot_free(episodic_snapshot snapshot);
/* Makes all that was read durable. */
EPISODIC_C_API int32_t episodic_sequence_commit(episodic_sequence sequence);
/* Back to the state after the first tokens of a kept memory. */
EPISODIC_C_API int32_t episodic_sequence_rewind(episodic_sequence sequence, int64_t tokens);
/* Never recalls the events that share a token with the range. forgotten: how many; may be NULL. */
EPISODIC_C_API int32_t episodic_sequence_forget(episodic_sequence sequence, episodic_range tokens,
                                                size_t* forgotten);
EPISODIC_C_API int32_t episodic_sequence_pin(episodic_sequence sequence, int64_t event,
                                             int32_t pinned);
/* Events [first, first + capacity), as far as there are any. n is set to how many were copied, with a
 * null buffer to how many there are from `first` on. */
EPISODIC_C_API int32_t episodic_sequence_events(episodic_sequence sequence, int64_t first,
                                                episodic_range* events, size_t capacity, size_t* n);
/* Text of tokens of the sequence; "" where one of them is unknown or forgotten. */
EPISODIC_C_API int32_t episodic_sequence_text(episodic_sequence sequence, episodic_range tokens,
                                              char* text, size_t capacity, size_t* length);
/* Logits [vocab] that follow the last token. */
EPISODIC_C_API int32_t episodic_sequence_logits(episodic_sequence sequence, float* logits,
                                                size_t capacity, size_t* n);

/* One sequence's part of a step of many. */
typedef struct episodic_step {
  size_t struct_size;
  episodic_sequence sequence;
  const int64_t* ids; /* 1 to chunk of them */
  size_t n;
  int32_t decodes; /* a token of an answer, not of a text that is read */
  float* logits;   /* [vocab] that follow the last id, written; NULL: not wanted */
  int32_t code;    /* written: what came of it; the others are not touched by a failure */
  char message[256]; /* written: "" or what went wrong, cut to fit */
} episodic_step;

/* One step of all of them: the weights are read once. Each gives the bits that it gives alone. The
 * call fails as a whole only for a null array or a bad model. */
EPISODIC_C_API int32_t episodic_run(episodic_model model, episodic_step* steps, size_t n);

/* Called with the prompt's number, else as episodic_on_token. */
typedef int32_t (*episodic_on_token_of)(size_t prompt, int64_t id, const char* text, size_t length,
                                        void* user);

/* One sequence's part of answers that are written together. Since version 2. */
typedef struct episodic_prompt {
  size_t struct_size;
  episodic_sequence sequence;
  const char* text; /* a prompt as a text, */
  size_t length;
  const int64_t* ids; /* or as ids; the other is NULL */
  size_t n_ids;
  const episodic_generate_options* options; /* NULL: the defaults */
  int32_t asks; /* the sequence is afterwards as it was, as with episodic_sequence_ask */
  int32_t code; /* written: what came of it; the others are not touched by a failure */
  episodic_answer answer; /* written; NULL with a failure */
  char message[256];      /* written: "" or what went wrong, cut to fit */
} episodic_prompt;

/* Answers to all of them: each step is one of all sequences that are not done, so that the weights
 * are read once. Each answer is the one that its sequence gives alone, to the bit. on_token: may be
 * NULL; another value than 0 ends that prompt's answer alone. The call fails as a whole only for a
 * null array, a bad model or want of memory; answers are then there where code is EPISODIC_OK.
 * Since version 2. */
EPISODIC_C_API int32_t episodic_generate_many(episodic_model model, episodic_prompt* prompts,
                                              size_t n, episodic_on_token_of on_token, void* user);

/* ---- memories: for a caller's own attention ---------------------------------------------------- */

typedef enum episodic_dtype {
  EPISODIC_FLOAT32 = 0,
  EPISODIC_BFLOAT16 = 1,
  EPISODIC_FLOAT16 = 2
} episodic_dtype;

/* n tokens of so many heads, dim elements each; element (i, h, c) is
 * data[i * row_stride + h * head_stride + c]. Strides of 0: packed rows [n, heads, dim]. */
typedef struct episodic_view {
  size_t struct_size;
  void* data;
  int32_t dtype;   /* episodic_dtype */
  int32_t rotated; /* of queries and keys: they have been through rotary embedding */
  int64_t n, heads, dim;
  int64_t row_stride, head_stride; /* in elements, not negative */
} episodic_view;

/* What a memory must know of the model it serves. All layers are alike. */
typedef struct episodic_shape {
  size_t struct_size;
  int64_t n_layers, n_heads, n_kv_heads, head_dim;
  int64_t rotary_dim;  /* channels that are rotated; 0: none */
  double rotary_theta; /* frequencies theta^(-2c / rotary_dim), where `frequencies` is NULL */
  const double* frequencies; /* [rotary_dim / 2], or NULL */
  double attention_factor;   /* of yarn and longrope; 0: 1 */
  int32_t interleaved;       /* pairs (2c, 2c + 1) instead of (c, c + rotary_dim / 2) */
  float scale;               /* of the dot products; 0: 1 / sqrt(head_dim) */
  float softcap;             /* 0: none */
} episodic_shape;

/* settings: JSON (docs/settings.md); NULL: the paper's. */
EPISODIC_C_API int32_t episodic_memory_new(const char* settings, const episodic_shape* shape,
                                           episodic_memory* memory);
/* A memory that is kept in a new or empty folder. */
EPISODIC_C_API int32_t episodic_memory_create(const char* folder, const char* settings,
                                              const episodic_shape* shape, episodic_memory* memory);
/* One that is there, at its last commit. writes: 0 leaves the folder as it is. */
EPISODIC_C_API int32_t episodic_memory_open(const char* folder, int32_t writes,
                                            const episodic_shape* shape, episodic_memory* memory);
EPISODIC_C_API int32_t episodic_memory_free(episodic_memory memory);

/* Opens a step of n tokens, 1 <= n <= chunk; one that was open is begun anew. decodes: the token is
 * of an answer. */
EPISODIC_C_API int32_t episodic_memory_begin_step(episodic_memory memory, int64_t n,
                                                  int32_t decodes);
/* One layer of the step, in order, each once. q, out: [n, n_heads, head_dim]; k, v: [n, n_kv_heads,
 * head_dim]. */
EPISODIC_C_API int32_t episodic_memory_attend(episodic_memory memory, int64_t layer,
                                              const episodic_view* q, const episodic_view* k,
                                              const episodic_view* v, const episodic_view* out);
/* surprise: [n] nats, the negative log-likelihood of each token of the step. */
EPISODIC_C_API int32_t episodic_memory_end_step(episodic_memory memory, const float* surprise,
                                                size_t n);
/* The same from ids [n] and logits [n, vocab], row_stride elements between rows: row i follows token
 * i. */
EPISODIC_C_API int32_t episodic_memory_end_step_logits(episodic_memory memory, const int64_t* ids,
                                                       size_t n, const float* logits, int64_t vocab,
                                                       int64_t row_stride);
EPISODIC_C_API int32_t episodic_memory_reset(episodic_memory memory);

typedef struct episodic_memory_info {
  size_t struct_size;
  int64_t tokens, events, lanes;
  int64_t chunk;
  int64_t open_tokens; /* of the step that is open */
  int32_t kept;
} episodic_memory_info;
EPISODIC_C_API int32_t episodic_memory_get_info(episodic_memory memory, episodic_memory_info* info);
EPISODIC_C_API int32_t episodic_memory_events(episodic_memory memory, int64_t first,
                                              episodic_range* events, size_t capacity, size_t* n);
/* Events that a lane recalled in the last step, best first. */
EPISODIC_C_API int32_t episodic_memory_recalled(episodic_memory memory, int64_t lane,
                                                int64_t* events, size_t capacity, size_t* n);
EPISODIC_C_API int32_t episodic_memory_snapshot(episodic_memory memory, episodic_snapshot* snapshot);
EPISODIC_C_API int32_t episodic_memory_restore(episodic_memory memory, episodic_snapshot snapshot);
/* A further memory that goes on from here; what there is becomes a base of both. */
EPISODIC_C_API int32_t episodic_memory_fork(episodic_memory memory, episodic_memory* other);
EPISODIC_C_API int32_t episodic_memory_commit(episodic_memory memory);
EPISODIC_C_API int32_t episodic_memory_forget(episodic_memory memory, episodic_range tokens,
                                              size_t* forgotten);
EPISODIC_C_API int32_t episodic_memory_pin(episodic_memory memory, int64_t event, int32_t pinned);

/* ---- folders of kept memories ------------------------------------------------------------------ */

/* A second memory with the same content; files are shared. */
EPISODIC_C_API int32_t episodic_folder_fork(const char* from, const char* to);
/* Reads every byte. damages: how many files are; report: a line for each, as other texts. report may
 * be NULL with a capacity of 0. */
EPISODIC_C_API int32_t episodic_folder_verify(const char* folder, size_t* damages, char* report,
                                              size_t capacity, size_t* length);

/* ---- memories for all layers of a model (version 2) -------------------------------------------- */

/* A layer of a model whose layers differ. */
typedef struct episodic_layer {
  size_t struct_size;
  int64_t window; /* a token sees the last `window` tokens; 0: all before it */
  int64_t rotary_dim;        /* from here on as in episodic_shape */
  double rotary_theta;
  const double* frequencies;
  double attention_factor;
  int32_t interleaved;
  float scale;
  float softcap;
} episodic_layer;

typedef struct episodic_memory_options {
  size_t struct_size;
  const char* settings; /* JSON; NULL: the model's own, or the paper's without a model */
  const char* folder;   /* where it is kept; NULL: nowhere */
  int32_t writes;       /* as in episodic_sequence_open */
  const char* model;    /* a Hugging Face directory or a GGUF file; NULL: any model */
  const episodic_shape* shape;  /* NULL: the model's */
  const episodic_layer* layers; /* [shape->n_layers], or NULL: all as the shape says */
} episodic_memory_options;

/* A memory that stands for all layers of a model. It serves those that see everything, or all where
 * all have a window. The others get their exact windowed attention beside it, and are snapshotted,
 * forked and kept with it; their queries and keys come before rotary embedding.
 *
 * With `model` a kept memory is that model's: what the programs made opens here, and the other way
 * round, and that of another model is refused with EPISODIC_CONFIG. Its weights are read once for
 * it. A shape that is given beside it must be the model's; only `interleaved` may differ, and then
 * says how the caller's channels lie. */
EPISODIC_C_API int32_t episodic_memory_make(const episodic_memory_options* options,
                                            episodic_memory* memory);
/* Ends a step with its ids [n], which are kept with the memory. surprise: [n - 1] nats of ids[1] and
 * on; that of ids[0] follows from the logits of the step before. last_logits: [vocab] that follow
 * the last id. */
EPISODIC_C_API int32_t episodic_memory_end_step_ids(episodic_memory memory, const int64_t* ids,
                                                    size_t n, const float* surprise,
                                                    const float* last_logits, int64_t vocab);
/* Gives up the step that is open, if one is. */
EPISODIC_C_API int32_t episodic_memory_abandon_step(episodic_memory memory);
/* Ids of tokens of a kept memory; -1 where none were given. */
EPISODIC_C_API int32_t episodic_memory_ids(episodic_memory memory, episodic_range tokens,
                                           int64_t* ids, size_t capacity, size_t* n);

/* ---- memories on a CUDA device (version 4) ---------------------------------------------------- */

typedef struct episodic_device_options {
  size_t struct_size;
  const char* settings;        /* JSON (docs/settings.md); NULL: the paper's */
  const episodic_shape* shape; /* of the layers that the memory serves */
  int32_t dtype;               /* episodic_dtype of all views, and of what is kept of them */
  int32_t device_number;       /* of several; default 0 */
  int64_t max_tokens;          /* that the sequence may come to */
  void* stream;    /* a cudaStream_t of that device, which outlives the memory; NULL: the default */
  int32_t rotated; /* queries and keys may come after rotary embedding */
} episodic_device_options;

/* A memory for a caller whose queries, keys and values lie on a device. What is said above of
 * memories holds, but that
 * - views lie in device memory: heads side by side (head_stride = dim), tokens at multiples of 8
 *   elements, addresses at multiples of 16 bytes, `out` packed;
 * - so do the surprise and the logits that a step ends with; ids lie in host memory;
 * - calls of a step enqueue their work on the stream and return. Those that look into the memory,
 *   snapshots, forks and edits wait. What the device finds wrong, such as a NaN, is what the next
 *   call that waits says;
 * - there are no folders and no ids: `commit`, `ids` and `end_step_ids` are EPISODIC_CONFIG.
 * EPISODIC_NOT_BUILT in a build without CUDA, EPISODIC_DEVICE where there is none. */
EPISODIC_C_API int32_t episodic_memory_on_device(const episodic_device_options* options,
                                                 episodic_memory* memory);
/* From here on enqueues on another stream of its device, which waits for what was enqueued. */
EPISODIC_C_API int32_t episodic_memory_use_stream(episodic_memory memory, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* EPISODIC_C_EPISODIC_H_ */
