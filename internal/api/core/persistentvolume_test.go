package core

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestMountOptionsAnnotation(t *testing.T) {
	const refused = "metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: may not specify mount options for this volume type"
	const yes, no = "{volume.beta.kubernetes.io/mount-options: ro}", "{}"
	for name, test := range map[string]struct {
		annotations, source string
		want                []string
	}{
		"nfs":            {yes, "nfs: {server: s, path: /}", nil},
		"iscsi":          {yes, "iscsi: {targetPortal: 1.1.1.1, iqn: 'iqn.2001-04.com.example:storage', lun: 0}", nil},
		"hostPath":       {yes, "hostPath: {path: /x}", []string{refused}},
		"csi":            {yes, "csi: {driver: d, volumeHandle: h}", []string{refused}},
		"hostPath, none": {no, "hostPath: {path: /x}", nil},
	} {
		text := "{metadata: {annotations: " + test.annotations + "}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], " + test.source + "}}"
		pv, errs := create[corev1.PersistentVolume](t, "persistentvolumes", text)
		t.Run(name, func(t *testing.T) {
			check(t, errs, test.want...)
			old := pv.DeepCopy()
			delete(old.Annotations, corev1.MountOptionAnnotation)
			var got []string
			for _, e := range validatePersistentVolumeUpdate(ctx, pv, old) {
				got = append(got, e.Error())
			}
			if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
				t.Errorf("changed: %q, want %q", got, test.want)
			}
		})
	}
}
