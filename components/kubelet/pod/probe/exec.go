package probe

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
)

// RuntimeExec returns a function that runs a command in a container and returns its exit code and output. A
// timeout of 0 means no timeout.
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
