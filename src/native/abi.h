// The library's C interface, independent of the versions of Python and torch.
//
// Axes: B batch, H query heads, G key/value heads (H is a multiple of G), L queries, S keys, D head
// dimension of query and key, Dv of value. All fields are eight bytes wide, so there is no padding;
// but pointers take four in WebAssembly, where a field of eight begins at a multiple of eight.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raised whenever a struct, a signature or the list of readouts below changes.
#define REGARD_ABI 21

enum { REGARD_FLOAT32 = 0, REGARD_BFLOAT16 = 1, REGARD_FLOAT16 = 2 };

// The result of a call.
enum { REGARD_DONE = 0, REGARD_OUT_OF_MEMORY = 1 };

// (B, heads, positions, dim), strides in elements; the last axis is contiguous.
typedef struct {
  void *data;
  int64_t batch, head, row;
} regard_tensor;

// One float per head, (B, H), or none.
typedef struct {
  const float *data;
  int64_t batch, head;
} regard_numbers;

// (B, H, L, S), any strides in elements, 0 for a broadcast axis; or none.
typedef struct {
  const void *data;
  int64_t batch, head, row, column;
} regard_matrix;

// The keys that each query sees, [start, stop), and its position among them, each (B, H, L) with
// the last axis contiguous; or, without tables, query i sees
// [start_base + i·start_step, stop_base + i·stop_step) clamped to [0, S), and is at position + i.
typedef struct {
  const int64_t *start, *stop, *positions;
  int64_t batch, head;
  int64_t start_base, start_step, stop_base, stop_step, position;
} regard_rows;

// Spans of keys whose scores are changed: N = `count` tables (N, B, H, L) of start and stop, with
// the last axis contiguous; span n of a query is its keys [start, stop), 0 ≤ start ≤ stop ≤ S.
// `added` (N) is added to their scores after softcap and bias; −∞ hides them. Spans may overlap.
typedef struct {
  const int64_t *start, *stop;
  const float *added;
  int64_t count, span, batch, head;
} regard_spans;

typedef struct {
  int64_t dtype, threads;
  int64_t batch, heads, groups, queries, keys, dim, dim_value;
  double scale;
  double softcap;  // 0: none
  double dropout;  // probability of dropping a weight
  uint64_t seed;
  regard_tensor query, key, value;
  regard_rows rows;
  regard_spans spans;
  regard_matrix allowed;  // bytes, 0 where a key is hidden
  regard_matrix bias;     // floats, −∞ where a key is hidden
  regard_numbers alibi;   // slopes
  regard_numbers sink;    // logits
} regard_problem;

// Computes context, in the dtype of query, and logsumexp (B, H, L), contiguous, unless it is NULL.
int regard_forward(const regard_problem *problem, const regard_tensor *context, float *logsumexp);

// The same without the log-sum-exp, for a packed problem whose pointers and threads are replaced by
// the arguments; context is contiguous.
int regard_attend(const regard_problem *kind, void *query, void *key, void *value, void *context,
                  int64_t threads);

// Inputs and results of the backward pass; data is NULL where no gradient is wanted.
typedef struct {
  regard_tensor context, context_gradient;  // in the dtype of query
  const float *logsumexp;                   // (B, H, L), contiguous
  regard_tensor query, key, value;          // the gradients of each, in their dtype
  regard_matrix
      bias;  // floats, (B, H, L, S), last axis contiguous: what it shares is not summed up
  float *alibi, *sink;  // (B, H), contiguous: likewise
  // 1 if the problem has all keys of the rows of context and logsumexp, else 0.
  int64_t all_keys;
} regard_gradients;

int regard_backward(const regard_problem *problem, const regard_gradients *gradients);

// The readouts, and the shape of each result after (B, H), floats unless noted; `size` and
// `operand` in brackets.
enum {
  REGARD_LOGSUMEXP,     // (L)
  REGARD_MAX,           // (L)
  REGARD_ENTROPY,       // (L)
  REGARD_DISTANCE,      // (L)
  REGARD_MASS,          // (L) [operand: floats (S), 1 for the keys that count, else 0]
  REGARD_TOP,           // (L, k) and positions, int64 [size: k]
  REGARD_WEIGHTS,       // (L, n), zeros before [size: n; operand: int64 (2, n), see chosen.h]
  REGARD_RECEIVED,      // (S)
  REGARD_LEFT_PRODUCT,  // (M, S) [size: M; operand: floats (B, H, M, L)]
  REGARD_OFFSETS,       // (n) [size: n]
  REGARD_IMAGE,         // (rows, columns), no more than (L, S) [size: rows; columns; height, width:
                        // queries and keys of the whole image; all of its pixels begin within L, S]
  REGARD_MAX_SCORE,     // (L), only if spans hide and do not shift scores
  REGARD_LAG,    // (L, 2), weight and logarithm [size: keys back; or operand: int64 (B, H, L),
                 // the key of each query, −1 for none]
  REGARD_SPANS,  // (L, n) [size: n; operand: int64 (S), the span of each key, −1 for none]
  REGARD_MAX_RECEIVED,   // (S)
  REGARD_MEAN_RECEIVED,  // (2, S), sums and how many queries see each key
  REGARD_MAX_BLOCKS,     // as REGARD_IMAGE, of pixels that are whole queries and keys
  REGARD_LARGEST,        // as REGARD_TOP, but the entries of largest magnitude, with their signs
  REGARD_REPEATS,  // (L, 2, 3), of the copies of a query's token and of their successors: how many
                   // it sees, their weight, and that with the keys shuffled; then (2, 2, 2, S), of
                   // the queries that a key is a copy or successor for, and of the others that see
                   // it: how many, and their weight; see repeats.h [operand: int64
                   // (2, max(L, S)), where the token of each position stands first, and next; for
                   // nowhere max(L, S)]
};

typedef struct {
  int64_t kind;
  float *result;
  int64_t *positions;
  const void *operand;
  int64_t size, columns, height, width;
} regard_readout;

// What is read in place of the weights: w, or its odds w / (1 − w), times a factor per key, times a
// dot product. Factors are finite. With them there are no readouts of scores, REGARD_MAX, _TOP,
// _MAX_SCORE and _LAG, nor REGARD_ENTROPY.
typedef struct {
  // (B, H, L): odds are read, and these are those of the key of largest weight of each row, whose
  // own odds would lose digits; −1 for none. NULL: weights are read.
  const int64_t *largest;
  const float *odds;
  const float *key;                  // (B, H, S), or NULL
  int64_t dim;                       // of the dot product of two float tensors, if there is one
  regard_tensor dot_query, dot_key;  // (B, H, L, dim) and (B, G, S, dim), or no data
} regard_factors;

typedef struct {
  const float *logsumexp;       // (B, H, L), or NULL to compute it first
  int64_t first_key, stop_key;  // restricts it to keys [first, stop); a part requires logsumexp
  int64_t count;
  const regard_readout *list;
  const regard_factors *factors;  // or NULL
} regard_readouts;

// Takes any number of readouts in one pass over the pattern of query and key; needs no value.
int regard_read(const regard_problem *problem, const regard_readouts *readouts);

// Bitwise equal to regard_forward and then regard_read, with the log-sum-exps of the former if
// `readouts` has them, else without; but in one pass if scores can be stored for the latter.
int regard_forward_and_read(const regard_problem *problem, const regard_tensor *context,
                            float *logsumexp, const regard_readouts *readouts);

// The divergence between corresponding rows of two patterns, with a sink as one more key: KL and
// Jensen–Shannon divergence in nats, and total variation distance.
enum { REGARD_KL, REGARD_JS, REGARD_TV };

typedef struct {
  int64_t kind;
  const float *one, *other;  // log-sum-exps, (B, H, L)
  double *result;            // (B, H, L)
} regard_divergence;

// The problems agree in dtype, threads and all sizes but the head dimensions.
int regard_compare(const regard_problem *one, const regard_problem *other,
                   const regard_divergence *divergence);

// Rows of a matrix in the blocks of a GGUF, one row behind another without padding. Kinds are
// numbered as there; those of numbers without blocks are here so that a matrix may be of both.
enum {
  REGARD_GGUF_F32 = 0,
  REGARD_GGUF_F16 = 1,
  REGARD_GGUF_Q4_0 = 2,
  REGARD_GGUF_Q4_1 = 3,
  REGARD_GGUF_Q8_0 = 8,
  REGARD_GGUF_Q4_K = 12,
  REGARD_GGUF_Q6_K = 14,
  REGARD_GGUF_BF16 = 30,
};

typedef struct {
  const void *data;
  int64_t kind, rows;
} regard_blocks;

// A linear map of a few vectors, everything contiguous and of one dtype: (V, O) = (V, I) · (O, I)ᵀ,
// plus (O) unless bias is NULL. Unless scale (O) is NULL, the weight is int8 and each of its rows
// is multiplied by its scale. Unless blocks is NULL, it lists parts of O rows in all, which take
// the place of the weight; I is a multiple of the numbers of a block, and the dtype is float32.
typedef struct {
  int64_t dtype, threads;
  int64_t vectors, inputs, outputs;
  const void *x, *weight, *bias;
  const float *scale;
  const regard_blocks *blocks;
  void *result;
} regard_matvec;

int regard_multiply(const regard_matvec *product);

// One step of a GPT: one new token of each of B sequences, or B new tokens of one sequence, whose
// keys and values are appended to a cache. All tensors but the cache are contiguous; all are of one
// dtype, except that all maps and the tokens may be int8, or all be in blocks. E is heads · dim, D
// the head dimension.
typedef struct {
  const void *weight, *bias;    // (O, I); (O) or NULL
  const float *scale;           // (O): of an int8 weight, as above; or NULL
  const regard_blocks *blocks;  // in place of the weight, as above; or NULL
} regard_linear;

typedef struct {
  const void *weight, *bias;  // of the width normalized; NULL: no norm; bias may be NULL
  int64_t rms;                // RMS norm, else layer norm
  double epsilon;
} regard_norm;

typedef struct {
  regard_norm attention_norm, query_norm, key_norm, mlp_norm;
  regard_norm attention_output_norm, mlp_output_norm;  // of what is added to the stream, or none
  regard_linear qkv, projection;   // ((H + 2·G)·D, E): queries, keys, values; (E, H·D)
  regard_linear expand, contract;  // (F, E), or (2·F, E): gate, up; (E, F)
  regard_tensor key, value;  // (B, G, S, D), memory of the cache; of one sequence (1, G, S, D)
  int64_t keys;              // S, including the new keys, which are written to the last rows
  int64_t evicted, window;   // keys before the first row; maximum keys that a query sees
  int64_t rotation;          // number of its table of cosines and sines
  // For recordings and interventions; each may be NULL, or have count 0.
  void *stream;        // (B, E): output, the residual stream before this layer
  void *query;         // (B, E): output, the queries after norm and rotation
  float *scores;       // (B, H, columns): output, those of the S keys, −∞ where hidden
  int64_t columns;     // of a row of them, at least S
  regard_spans spans;  // (N, B, H): keys whose scores are changed
  const float *kept;   // (H·D): factor of each channel of the contexts
} regard_layer;

enum { REGARD_GELU, REGARD_SWIGLU, REGARD_GEGLU };

typedef struct {
  int64_t dtype, threads;
  int64_t batch, layers, width, heads, groups, dim, hidden, vocabulary;  // width: E
  int64_t mlp;                     // REGARD_GELU, or what it is gated by
  int64_t one_sequence;            // the tokens are consecutive, with causal attention
  int64_t skipped;                 // number of first tokens without logits
  double factor;                   // what the tokens are multiplied by where they are read
  double scale, softcap;           // of scores, as of a problem
  double logit_softcap;            // 0: none
  const void *stream;              // (B, E): input of the first layer instead of tokens; or NULL
  const int64_t *ids, *positions;  // (B)
  const int64_t *padding;          // (B): keys at the start that are hidden; or NULL
  regard_linear tokens;            // (V, E), without a bias
  const void *learned;             // (positions, E) or NULL
  const float *cosines, *sines;    // (N, B, D / 2), or NULL without rotary positions
  const regard_layer *layer;       // (layers)
  regard_norm norm;                // the final norm
  regard_linear unembedding;       // (V, E), which may be the tokens
  void *result;                    // logits (B − skipped, V)
} regard_gpt;

// Ids and positions must be within their tables. At most 16 heads share keys and values.
int regard_gpt_step(const regard_gpt *gpt);

// GELU in its tanh form, elementwise, everything contiguous and of one dtype; or, with a gradient,
// that gradient times the derivative at x.
typedef struct {
  int64_t dtype, threads;
  int64_t size;
  const void *x, *gradient;  // gradient: NULL for GELU itself
  void *result;
} regard_activation;

int regard_gelu(const regard_activation *call);

// A residual stream and its norm, of N rows of E numbers, everything contiguous: sum = x + added,
// and normed, the layer norm of sum. `dtype` is that of added and normed, all else is float32.
typedef struct {
  int64_t dtype, threads;
  int64_t rows, width;
  int64_t rms;  // RMS norm, else layer norm
  double epsilon;
  const float *x;
  const void *added;  // NULL: x is the sum, and `sum` is not written
  const float *weight, *bias;
  float *sum;
  void *normed;
  float *mean, *factor;  // (N): statistics of each row, for the backward pass
} regard_residual_norm;

int regard_residual_norm_forward(const regard_residual_norm *call);

typedef struct {
  int64_t dtype, threads;
  int64_t rows, width;
  int64_t rms;
  const float *x;  // the sum
  const float *mean, *factor, *weight;
  const void *normed_gradient;  // of the dtype
  const float *sum_gradient;    // NULL: none
  float *x_gradient;
  void *added_gradient;  // the same in the dtype; or NULL
  float *weight_gradient, *bias_gradient;
} regard_residual_norm_gradients;

int regard_residual_norm_backward(const regard_residual_norm_gradients *call);

// The cross-entropy of N rows of V logits, everything contiguous: the log-sum-exp of a row minus
// the logit of its target, in nats; and the gradient of their weighted sum with respect to the
// logits.
typedef struct {
  int64_t dtype, threads;
  int64_t rows, vocabulary;  // N, V, at least 1
  const void *logits;        // (N, V), of the dtype
  const int64_t *targets;    // (N), below V; below 0: the row has loss and gradient 0
  const float *weights;      // (N)
  float *losses;             // (N), not multiplied by the weights
  void *gradient;            // (N, V), of the dtype, may be the logits; or NULL
} regard_cross_entropy;

int regard_cross_entropy_and_gradient(const regard_cross_entropy *call);

// Measures the peak rates of the threads, in some hundredths to tenths of a second: operations per
// second in a dtype, with the instruction set in use, and bytes per second read from memory. 0 if
// there is no memory for the measurement.
double regard_peak_flops(int dtype, int64_t threads);
double regard_peak_bandwidth(int64_t threads);

int regard_abi(void);
// Instruction sets, comma-separated, best first: those compiled, and those the processor supports.
const char *regard_built(void);
const char *regard_supported(void);
// The one in use; choose before the first computation. NULL is the best; 0 is success.
const char *regard_instructions(void);
int regard_choose(const char *name);
// The file of the OpenMP runtime that runs the threads; empty if they are the library's own.
const char *regard_pool(void);

#ifdef __cplusplus
}
#endif
