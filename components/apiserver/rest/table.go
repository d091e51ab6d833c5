package rest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// tableMeta is the metadata of a list or a table: the resource version, the continue token, and the
// number of remaining objects.
type tableMeta struct {
	revision  int64
	next      string
	remaining int64 // negative if unset
}

// tableRow is the object of one row of a table. entry is nil if the object is not in the store.
// deletedRevision is the revision at which the object was deleted, or zero.
type tableRow struct {
	obj             api.Object
	entry           *store.Entry
	deletedRevision int64
}

// sendTable sends rows as a Table, the format in which kubectl get requests objects.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
func (c responder) sendTable(format negotiate.Format, code int, rows []tableRow, meta tableMeta) error {
	data, err := c.appendTable(nil, format, rows, meta, true)
	if err != nil {
		return err
	}
	return c.write(format, code, data)
}

// include returns the client's parameter includeObject: whether each row contains the object, its
// metadata (the default) or neither.
func (c responder) include() metav1.IncludeObjectPolicy {
	return metav1.IncludeObjectPolicy(c.query.Get("includeObject"))
}

// checkInclude returns a BadRequest error if the parameter includeObject is invalid.
func (c responder) checkInclude() error {
	switch include := c.include(); include {
	case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject, "":
		return nil
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: includeObject: Invalid value: %q: must be 'Metadata', 'Object', 'None', or empty", include))
	}
}

// appendTable appends a Table in JSON to dst. headers is set if it contains the column definitions,
// which a watch sends only in its first event.
func (c responder) appendTable(dst []byte, format negotiate.Format, rows []tableRow, meta tableMeta, headers bool) ([]byte, error) {
	if err := c.checkInclude(); err != nil {
		return nil, err
	}
	include := c.include()
	kind := tableKinds[format.Version]
	dst = kind.AppendJSONHead(dst)
	dst = append(dst, `,"metadata":{`...)
	if meta.revision != 0 { // zero for objects that are not stored
		dst = append(dst, `"resourceVersion":"`...)
		dst = strconv.AppendInt(dst, meta.revision, 10)
		dst = append(dst, '"')
		if meta.next != "" {
			dst = append(dst, `,"continue":"`...)
			dst = append(dst, meta.next...)
			dst = append(dst, '"')
		}
		if meta.remaining >= 0 {
			dst = append(dst, `,"remainingItemCount":`...)
			dst = strconv.AppendInt(dst, meta.remaining, 10)
		}
	}
	dst = append(dst, `},"columnDefinitions":`...)
	if headers {
		columns, err := json.Marshal(c.res.Columns)
		if err != nil {
			return nil, fmt.Errorf("encoding the columns of %s: %w", c.res.Kind, err)
		}
		dst = append(dst, columns...)
	} else {
		dst = append(dst, "null"...)
	}
	if len(rows) == 0 && isGenericTable(c.res.Columns) {
		return append(dst, `,"rows":null}`...), nil
	}
	if order := c.res.RowOrder; order != nil && len(rows) > 1 {
		rows = slices.Clone(rows)
		slices.SortStableFunc(rows, func(a, b tableRow) int { return order(a.obj, b.obj) })
	}
	dst = append(dst, `,"rows":[`...)
	for i, row := range rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		cells, err := json.Marshal(c.res.Row(row.obj))
		if err != nil {
			return nil, fmt.Errorf("encoding a row of %s: %w", c.res.Kind, err)
		}
		dst = append(dst, `{"cells":`...)
		dst = append(dst, cells...)
		if dst, err = c.appendRowConditions(dst, row.obj); err != nil {
			return nil, err
		}
		dst = append(dst, `,"object":`...)
		if dst, err = c.appendRowObject(dst, format, include, row); err != nil {
			return nil, err
		}
		dst = append(dst, '}')
	}
	return append(dst, "]}"...), nil
}

// isGenericTable reports whether columns are those of kinds for which upstream has no table
// printer. "rows" is null in their empty tables.
func isGenericTable(columns []metav1.TableColumnDefinition) bool {
	return slices.ContainsFunc(columns, func(c metav1.TableColumnDefinition) bool { return c.Name == api.CreatedColumn.Name })
}

// appendRowConditions appends the conditions of the row of obj, such as the one that marks
// completed pods. It appends nothing for most kinds.
func (c responder) appendRowConditions(dst []byte, obj api.Object) ([]byte, error) {
	if c.res.RowConditions == nil {
		return dst, nil
	}
	conditions := c.res.RowConditions(obj)
	if len(conditions) == 0 {
		return dst, nil
	}
	data, err := json.Marshal(conditions)
	if err != nil {
		return nil, fmt.Errorf("encoding the conditions of a row of %s: %w", c.res.Kind, err)
	}
	return append(append(dst, `,"conditions":`...), data...), nil
}

// appendRowObject appends the object of a table row to dst: the complete object, its metadata or
// null, as the client requests with include.
func (c responder) appendRowObject(dst []byte, format negotiate.Format, include metav1.IncludeObjectPolicy, row tableRow) ([]byte, error) {
	switch include {
	case metav1.IncludeNone:
		return append(dst, "null"...), nil
	case metav1.IncludeObject:
		var data []byte
		var err error
		switch {
		case row.entry == nil:
			data, err = c.res.Marshal(row.obj)
		case row.deletedRevision != 0:
			data, err = c.res.DeletedJSON(row.entry, row.deletedRevision)
		default:
			data, err = c.res.JSON(row.entry)
		}
		if err != nil {
			return nil, err
		}
		return c.res.Object.AppendJSON(dst, data), nil
	}
	var data []byte
	var err error
	if row.entry != nil {
		data, err = c.res.MetadataJSON(row.entry, row.deletedRevision)
	} else {
		partial := registry.PartialMetadata(row.obj)
		partial.TypeMeta = metav1.TypeMeta{}
		data, err = json.Marshal(partial)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the metadata of a %s: %w", c.res.Kind, err)
	}
	return partialKind(format.Version).AppendJSON(dst, data), nil
}
