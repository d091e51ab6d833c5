package pods

import (
	"io"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/podlogs"
	"hyperkube/components/kubelet/podstate"
)

// Bounds of termination messages in bytes, and lines of a log that stands in.
const (
	maxMessage    = 4096
	maxMessageLog = 2048
	maxLogLines   = 80
)

// fillMessage reads what a container that has ended left as its last words.
// known is the container as it was last seen, or nil.
func (h *Host) fillMessage(pod *v1.Pod, c *podstate.Container, known *podstate.Container) {
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
			path = filepath.Join(h.LogDir(pod), path)
		}
		text = podlogs.Tail(path, maxLogLines, maxMessageLog)
	}
	if text != "" {
		c.Message = text
	} else if known := podstate.StatusOf(&pod.Status, c.Name); known != nil && c.Message == "" {
		// The file went with the pod's directory.
		if t := known.State.Terminated; t != nil && t.ContainerID == h.RuntimeName+"://"+c.ID {
			c.Message = t.Message
		}
	}
}

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
