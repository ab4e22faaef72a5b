/* SPDX-License-Identifier: Apache-2.0 */
/* The program around host.c, which has to be a library with NCCL's name. */
int host_main(void);

int main(void)
{
	return host_main();
}
