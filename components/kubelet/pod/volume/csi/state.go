package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pluginName is the name of the directory of CSI volumes in a pod's volumes directory.
const pluginName = "kubernetes.io~csi"

// dataFile is the name of the file beside each mount that contains the data for the teardown. Its name and
// keys are those of upstream, so that the kubelets can replace each other.
const dataFile = "vol_data.json"

// data is what a kubelet needs to know to tear down a volume after a restart.
type data struct {
	// Spec is the name of the persistent volume, or of the pod's volume if it is
	// inline.
	Spec   string `json:"specVolID,omitempty"`
	Handle string `json:"volumeHandle"`
	Driver string `json:"driverName"`
	Node   string `json:"nodeName,omitempty"`
	// Attachment is the VolumeAttachment's name; empty if the volume is not
	// attached.
	Attachment string `json:"attachmentID,omitempty"`
	Mode       string `json:"volumeLifecycleMode,omitempty"`
	Block      bool   `json:"block,omitempty"`
	// Label is the SELinux mount label of the volume, if it has one.
	Label string `json:"seLinuxMountContext,omitempty"`
}

// key identifies a volume on this node: the name of its driver and the driver's volume handle.
type key struct{ driver, handle string }

// key returns the driver and the volume handle of the volume that the data file describes.
func (d data) key() key { return key{d.Driver, d.Handle} }

// unique returns the volume's name in volumesInUse and volumesAttached of the Node status.
func (k key) unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + k.driver + "^" + k.handle)
}

// attachmentName returns the name of the VolumeAttachment of a volume to a node, as in upstream.
func attachmentName(k key, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(k.handle+k.driver+node)))
}

// inlineHandle returns the volume handle that the kubelet chooses for an inline ephemeral volume. volume is
// its name in the pod.
func inlineHandle(volume string, pod types.UID) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(volume+string(pod))))
}

// readData reads the data file in the directory dir. It returns fs.ErrNotExist if there is none, and another
// error if it is damaged.
func readData(dir string) (data, error) {
	raw, err := os.ReadFile(filepath.Join(dir, dataFile))
	if err != nil {
		return data{}, err
	}
	return decodeData(raw)
}

// decodeData decodes the content of a data file. A missing driver or volume handle is an error.
func decodeData(raw []byte) (data, error) {
	var d data
	if err := json.Unmarshal(raw, &d); err != nil {
		return data{}, fmt.Errorf("decoding a volume's data: %w", err)
	}
	if d.Driver == "" || d.Handle == "" {
		return data{}, errors.New("decoding a volume's data: driver or volume is missing")
	}
	return d, nil
}

// places computes the paths of CSI volumes below the kubelet's root directory.
type places struct{ root string }

// pods returns the directory that contains a directory for each pod.
func (p places) pods() string { return filepath.Join(p.root, "pods") }

// staged returns the directory of the data of a staged volume. The volume is mounted in its subdirectory
// globalmount.
func (p places) staged(k key) string {
	return filepath.Join(p.root, "plugins", "kubernetes.io", "csi", k.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(k.handle))))
}

// globalMount returns the path where a volume is staged, in the directory that places.staged returns.
func globalMount(staged string) string { return filepath.Join(staged, "globalmount") }

// use is the use of a volume by one pod. dir is the pod's directory of the volume.
type use struct {
	data
	pod types.UID
	dir string
}

// uses returns the volumes that pods of this node use, read from the data files. If files are damaged, it
// returns the uses of the other files and an error.
func (p places) uses() ([]use, error) {
	var out []use
	var damaged []error
	for _, kind := range []string{"volumes", "volumeDevices"} {
		files, err := filepath.Glob(filepath.Join(p.pods(), "*", kind, pluginName, "*", dataFile))
		if err != nil {
			return nil, fmt.Errorf("looking for volumes in use: %w", err)
		}
		for _, f := range files {
			dir := filepath.Dir(f)
			d, err := readData(dir)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				damaged = append(damaged, fmt.Errorf("%s: %w", f, err))
				continue
			}
			rel := strings.TrimPrefix(dir, p.pods()+"/")
			uid, _, _ := strings.Cut(rel, "/")
			out = append(out, use{data: d, pod: types.UID(uid), dir: dir})
		}
	}
	return out, errors.Join(damaged...)
}

// allStaged returns the volumes that are staged or being staged, read from the data files. If files are
// damaged, it returns the volumes of the other files and an error.
func (p places) allStaged() ([]data, error) {
	files, err := filepath.Glob(filepath.Join(p.root, "plugins", "kubernetes.io", "csi", "*", "*", dataFile))
	if err != nil {
		return nil, fmt.Errorf("looking for staged volumes: %w", err)
	}
	var out []data
	var damaged []error
	for _, f := range files {
		d, err := readData(filepath.Dir(f))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			damaged = append(damaged, fmt.Errorf("%s: %w", f, err))
		default:
			out = append(out, d)
		}
	}
	return out, errors.Join(damaged...)
}
