package usernamespaces

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

// account is the name of the host's user whose subordinate IDs are used for the user namespaces of pods.
const account = "kubelet"

// getsubidsTimeout is the timeout of the program getsubids, which may read a remote directory service.
const getsubidsTimeout = 30 * time.Second

// Ranges are the ID ranges that may be assigned to pods, by number: the IDs of range n begin at n
// times Length. The zero value means all ranges but the host's own.
type Ranges struct{ First, Count uint32 }

// Configured returns the ID ranges that user namespaces of pods may use: the subordinate IDs of the user
// kubelet as the program getsubids prints them. The zero value, which means all IDs except the host's own, is returned if
// there is no such user or program. It returns an error unless there is exactly one range, the same for user and group
// IDs, that consists of whole ranges of Length IDs and suffices for most, the maximum number of pods.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/user-namespaces/
func Configured(ctx context.Context, most int64) (Ranges, error) {
	if _, err := user.Lookup(account); err != nil {
		if _, ok := errors.AsType[user.UnknownUserError](err); ok {
			return Ranges{}, nil
		}
		return Ranges{}, fmt.Errorf("looking up the user %s: %w", account, err)
	}
	program, err := exec.LookPath("getsubids")
	if errors.Is(err, exec.ErrNotFound) {
		return Ranges{}, nil
	}
	if err != nil {
		return Ranges{}, fmt.Errorf("looking for getsubids: %w", err)
	}
	return readRanges(ctx, most, func(ctx context.Context, args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, program, args...).Output()
	})
}

// readRanges runs getsubids by calling run, for the subordinate user IDs and group IDs of the user kubelet, which
// must be the same, and returns them as ranges. It returns an error if they do not suffice for most pods.
func readRanges(ctx context.Context, most int64, run func(ctx context.Context, args ...string) ([]byte, error)) (Ranges, error) {
	ctx, cancel := context.WithTimeout(ctx, getsubidsTimeout)
	defer cancel()
	users, err := run(ctx, account)
	if err != nil {
		return Ranges{}, fmt.Errorf("error retrieving additional uids for user %q: %w", account, err)
	}
	groups, err := run(ctx, "-g", account)
	if err != nil {
		return Ranges{}, fmt.Errorf("error retrieving additional gids for user %q: %w", account, err)
	}
	if !bytes.Equal(users, groups) {
		return Ranges{}, fmt.Errorf("mismatched subuids and subgids for user %q", account)
	}
	return parse(string(users), most)
}

// parse parses the output of getsubids, such as "0: kubelet 65536 2147483648". It returns an error if there
// is not exactly one range, or the range does not consist of whole ranges for most pods.
func parse(text string, most int64) (Ranges, error) {
	text = strings.Trim(text, "\n")
	fields := strings.Fields(text)
	if strings.Contains(text, "\n") || len(fields) != 4 {
		return Ranges{}, fmt.Errorf("subordinate users %q: want one range", text)
	}
	first, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return Ranges{}, fmt.Errorf("subordinate users %q: %w", text, err)
	}
	count, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return Ranges{}, fmt.Errorf("subordinate users %q: %w", text, err)
	}
	switch {
	case first%Length != 0 || first < Length:
		return Ranges{}, fmt.Errorf("kubelet user assigned ID %d must be a multiple of %d, and at least that", first, Length)
	case count%Length != 0 || first+count > 1<<32:
		return Ranges{}, fmt.Errorf("kubelet user assigned IDs length %d is not a multiple of %d, or more than there are", count, Length)
	case int64(count/Length) < most:
		return Ranges{}, fmt.Errorf("kubelet user assigned IDs are not enough to support %d pods", most)
	}
	return Ranges{First: uint32(first / Length), Count: uint32(count / Length)}, nil
}
