package addons

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"hyperkube/manifests"
)

// SettingsName is the name of the ConfigMap in kube-system with the settings of add-ons. It does not exist
// before an add-on is enabled or disabled for the first time. Its data has a key for each changed add-on, so
// that concurrent changes of different add-ons do not conflict.
const SettingsName = "hyperkube-addons"

// changedAnnotation is the annotation of the settings with the time of the last change. Because of it,
// enabling an enabled add-on is a change, after which its objects are restored.
const changedAnnotation = "hyperkube.io/changed-at"

// Values of the settings of add-ons in their ConfigMap.
const (
	settingEnabled  = "enabled"
	settingDisabled = "disabled"
)

// Settings are the settings of add-ons, enabled or disabled, by their names. Add-ons without a valid setting have their
// default.
type Settings map[string]string

// Enabled reports whether an add-on is enabled. A required add-on always is; without a setting, the default of the
// add-on applies.
func (s Settings) Enabled(a manifests.Addon) bool {
	switch {
	case a.Required != "":
		return true
	case s[a.Name] == settingEnabled:
		return true
	case s[a.Name] == settingDisabled:
		return false
	}
	return a.Default
}

// ReadSettings returns the settings of a cluster. It returns nil if no add-on was ever enabled or disabled.
func ReadSettings(ctx context.Context, kube kubernetes.Interface) (Settings, error) {
	cm, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, SettingsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the settings of add-ons: %w", err)
	}
	return cm.Data, nil
}

// Enable enables the requested add-ons, and those of saved that are neither in the settings nor enabled by default. It
// ignores unknown names. It returns the new settings, and writes nothing if all of them are enabled.
func Enable(ctx context.Context, kube kubernetes.Interface, requested, saved []string) (Settings, error) {
	s, err := ReadSettings(ctx, kube)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range requested {
		if a, err := manifests.FindAddon(name); err == nil && !s.Enabled(a) {
			missing = append(missing, name)
		}
	}
	for _, name := range saved {
		if a, err := manifests.FindAddon(name); err == nil && s[name] == "" && !a.Default {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return s, nil
	}
	if err := ChangeSettings(ctx, kube, true, missing...); err != nil {
		return nil, err
	}
	return ReadSettings(ctx, kube)
}

// ChangeSettings enables or disables add-ons in the settings of a cluster. The caller needs permission to patch
// and create the ConfigMap.
func ChangeSettings(ctx context.Context, kube kubernetes.Interface, enabled bool, names ...string) error {
	value, data := settingDisabled, map[string]string{}
	if enabled {
		value = settingEnabled
	}
	for _, name := range names {
		data[name] = value
	}
	annotations := map[string]string{changedAnnotation: time.Now().UTC().Format(time.RFC3339Nano)}
	patch, err := json.Marshal(map[string]any{"data": data, "metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	configMaps := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	for {
		_, err = configMaps.Patch(ctx, SettingsName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		if apierrors.IsNotFound(err) {
			_, err = configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: SettingsName, Annotations: annotations}, Data: data}, metav1.CreateOptions{FieldManager: FieldManager})
			if apierrors.IsAlreadyExists(err) {
				continue // another client has created it in the meantime
			}
		}
		if err != nil {
			return fmt.Errorf("writing the settings of add-ons: %w", err)
		}
		return nil
	}
}
