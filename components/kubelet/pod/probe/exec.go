package probe

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
)

// RuntimeExec returns an Exec that runs commands through the container runtime. Its output is the standard
// output followed by the standard error. A timeout of 0 means none; a command that exceeds the timeout returns
// ErrTimeout.
func RuntimeExec(client *cri.Client) func(ctx context.Context, id string, cmd []string, timeout time.Duration) (int, []byte, error) {
	return func(ctx context.Context, id string, cmd []string, timeout time.Duration) (int, []byte, error) {
		seconds := int64((timeout + time.Second - 1) / time.Second)
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout+2*time.Second)
			defer cancel()
		}
		resp, err := client.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: seconds})
		if err != nil {
			if timeout > 0 && cri.IsTimeout(err) {
				return 0, nil, ErrTimeout
			}
			return 0, nil, errors.New(cri.Message(err))
		}
		return int(resp.ExitCode), append(resp.Stdout, resp.Stderr...), nil
	}
}
