/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Short-lived tokens: cspace-token, one process a token. It asks a token endpoint (provider "oauth2"), or runs a program
 * that the operator has put into [credentials] commands (provider "command"). Neither the request, which may have
 * a secret in it, nor the answer is looked at here.
 */

#include "rootd/rootd.h"

#define TOKEN_RUNNING_MAX TOKEN_UIDS /* on this host at one time, those too that are being ended; one a credential */
#define TOKEN_GRACE_S 5              /* beyond [credentials] timeout, which the program keeps itself */
