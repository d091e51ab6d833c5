package pods

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/podlogs"
	"hyperkube/components/kubelet/pod/podstate"
)

// maxMessage and maxMessageLog are the maximum sizes in bytes of a termination message that is read from the
// message file and from the container's log. maxLogLines is the maximum number of log lines that are used if there
// is no message file.
const (
	maxMessage    = 4096
	maxMessageLog = 2048
	maxLogLines   = 80
)

// logFiles manages the log files of containers and the links to them.
type logFiles struct {
	Logs
	log      *slog.Logger
	platform *Platform
}

// fillMessage sets c.Message to the termination message of an exited container. It reads the message file or,
// with the policy FallbackToLogsOnError after a failure, the end of the log. known is the container as last
// observed, or nil; if it has already exited, its message is reused. If the file was removed, the message of
// the pod's status in the API is reused. Other containers are not changed.
func (l *logFiles) fillMessage(pod *v1.Pod, c *podstate.Container, known *podstate.Container) {
	if c.State != podstate.Exited {
		return
	}
	if known != nil && known.State == podstate.Exited {
		c.Message = known.Message
		return
	}
	text := ""
	if c.TerminationMessageFile != "" {
		text = readHead(c.TerminationMessageFile, maxMessage)
	}
	if text == "" && c.TerminationMessagePolicy == string(v1.TerminationMessageFallbackToLogsOnError) && c.ExitCode != 0 && c.LogPath != "" {
		path := c.LogPath
		if !filepath.IsAbs(path) {
			path = filepath.Join(l.Dir(pod), path)
		}
		text = podlogs.Tail(path, maxLogLines, maxMessageLog)
	}
	if text != "" {
		c.Message = text
	} else if known := podstate.StatusOf(&pod.Status, c.Name); known != nil && c.Message == "" {
		// The file was removed with the pod's directory.
		if t := known.State.Terminated; t != nil && t.ContainerID == l.platform.RuntimeName()+"://"+c.ID {
			c.Message = t.Message
		}
	}
}

// readHead returns the first most bytes of a regular file. It returns "" for other files and after errors.
func readHead(path string, most int64) string {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	raw, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	return string(raw)
}
