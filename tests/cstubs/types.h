/* The types and parameter lists that calls.h uses. */
#include <stddef.h>

typedef struct {
	char internal[128];
} ncclUniqueId;
typedef void *ncclComm_t;
typedef void *ncclStream;
typedef enum { ncclInt8 = 0, ncclType_max = 12 } ncclDataType_t;
typedef enum { ncclSum = 0, ncclOp_max = 0x7fffffff } ncclRedOp_t;

#define P(n) ((void *)(0x7100000000ull + (n)*0x1000ull))
#define N(n) (0x500000000ull + (n))
#define U(p) ((unsigned long long)(p))
#define NO_PEER (-1)
#define NO_TYPE 255

#define SRC const void *send, void *recv

#define AR (SRC, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, ncclStream s)
#define ARC                                                                                        \
	(SRC, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, ncclStream s, const void *f)
#define RD (SRC, size_t n, ncclDataType_t t, ncclRedOp_t o, int r, ncclComm_t c, ncclStream s)
#define RDC                                                                                        \
	(SRC, size_t n, ncclDataType_t t, ncclRedOp_t o, int r, ncclComm_t c, ncclStream s,        \
	 const void *f)
#define BC (SRC, size_t n, ncclDataType_t t, int r, ncclComm_t c, ncclStream s)
#define BCC (SRC, size_t n, ncclDataType_t t, int r, ncclComm_t c, ncclStream s, const void *f)
#define AG (SRC, size_t n, ncclDataType_t t, ncclComm_t c, ncclStream s)
#define AGC (SRC, size_t n, ncclDataType_t t, ncclComm_t c, ncclStream s, const void *f)
#define P2P (void *b, size_t n, ncclDataType_t t, int p, ncclComm_t c, ncclStream s)
